// A library to preload (LD_PRELOAD): on a processor with AVX-512 a process finds AVX512_VNNI; where EMULATED_PROCESSOR is
// "avx512_bf16" or "amx" rather than "avx512_vnni", AVX512_BF16; and for "amx" AMX for bfloat16 and int8. Where it is "avx_vnni",
// the process finds AVX-VNNI instead, and has to be held to AVX2, as processors with AVX-512 compute by that.
//
// CPUID is made to fault (arch_prctl, ARCH_SET_CPUID) and tells of them; what the processor does not know raises SIGILL, and
// the handler computes it. Beside AMX it tells of AVX512_FP16, without which oneDNN uses no AMX, but does not compute it: float16
// by oneDNN ends the process.
//
// Where CPUID cannot be made to fault, as on most of AMD's processors, AMX is told to those that ask PyTorch, which are the kernels:
// their own tiles are emulated, and oneDNN's products are the processor's.
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tile_instructions.h"
#include "vector_instructions.h"

namespace emulation {
namespace {

constexpr int ARCH_SET_CPUID = 0x1012, ARCH_GET_XCOMP_PERM = 0x1022, ARCH_REQ_XCOMP_PERM = 0x1023;
constexpr uint64_t TILE_STATES = 3 << 17;

using Sigaction = int (*)(int, const struct sigaction*, struct sigaction*);
Sigaction set_handler = nullptr;
bool ready = false, told_by_cpuid = false, with_tiles = false, with_bfloat16 = false, with_avx_vnni = false, with_avx512_vnni = false;

long call_kernel(long number, const long (&arguments)[6]) {
  const auto& [a, b, c, d, e, f] = arguments;
  register long r10 asm("r10") = d, r8 asm("r8") = e, r9 asm("r9") = f;
  long result = 0;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

bool let_cpuid_fault(bool fault) { return call_kernel(SYS_arch_prctl, {ARCH_SET_CPUID, !fault}) == 0; }

struct Identity {
  unsigned eax, ebx, ecx, edx;
};

[[noreturn]] void refuse(const char* reason) {
  std::fprintf(stderr, "emulation: %s\n", reason);
  _exit(69);
}

// What CPUID gives for a leaf: the processor's own answer, and what is emulated beside it.
Identity identity(unsigned leaf, unsigned part) {
  Identity id{};
  let_cpuid_fault(false);
  const unsigned last = __get_cpuid_max(0, nullptr);
  if (leaf <= last || leaf > 0xffff) __cpuid_count(leaf, part, id.eax, id.ebx, id.ecx, id.edx);
  let_cpuid_fault(true);
  if (leaf == 7 && part == 0) {
    id.eax = std::max(id.eax, 1u);
    if (with_avx512_vnni) id.ecx |= 1u << 11;
    if (with_tiles) id.edx |= 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25;  // AMX_BF16, AVX512_FP16, AMX_TILE, AMX_INT8
  }
  if (leaf == 7 && part == 1) id.eax |= (with_bfloat16 ? 1u << 5 : 0) | (with_avx_vnni ? 1u << 4 : 0);
  if (!with_tiles) return id;
  if (leaf == 0) id.eax = std::max(id.eax, 0x1eu);
  if (leaf == 0xd && part == 0) id.eax |= TILE_STATES;
  if (leaf == 0x1d) id = part == 0 ? Identity{1, 0, 0, 0} : Identity{8192 | 1024 << 16, 64 | 8 << 16, 16, 0};  // palette 1
  if (leaf == 0x1e) id = {0, 16 | 64 << 8, 0, 0};
  return id;
}

// Has the signal end the process, as it would without a handler, when the instruction is tried again.
void give_up(int signal) {
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  set_handler(signal, &usual, nullptr);
}

std::atomic<uint64_t> emulated = 0;

// Computes the instruction, and those behind it as far as they are of the same kind: a signal costs more than they do.
void on_unknown_instruction(int signal, siginfo_t*, void* context) {
  Registers registers(context);
  Instruction it;
  int computed = 0;
  for (; computed < 4096 && read(registers, it); computed++) {
    if (!run_vector_instruction(registers, it) && !(with_tiles && run_tile_instruction(registers, it))) break;
    registers.go_on_at(it.behind);
  }
  emulated += computed;
  if (computed > 0) return;
  std::fprintf(stderr, "emulation: an instruction that is not emulated:");
  for (int i = 0; i < 12; i++) std::fprintf(stderr, " %02x", registers.next_instruction()[i]);
  std::fputc('\n', stderr);
  give_up(signal);
}

void on_fault(int signal, siginfo_t* about, void* context) {
  Registers registers(context);
  const uint8_t* const code = registers.next_instruction();
  const bool cpuid = about->si_code == SI_KERNEL && code[0] == 0x0f && code[1] == 0xa2;
  if (!cpuid) return give_up(signal);
  const Identity id = identity(registers.general(0), registers.general(1));
  registers.general(0) = id.eax, registers.general(3) = id.ebx, registers.general(1) = id.ecx, registers.general(2) = id.edx;
  registers.go_on_at(code + 2);
}

__attribute__((constructor)) void begin() {
  const char* const named = std::getenv("EMULATED_PROCESSOR");
  const std::string_view processor = named == nullptr ? "" : named;
  with_tiles = processor == "amx", with_bfloat16 = with_tiles || processor == "avx512_bf16";
  with_avx_vnni = with_tiles || processor == "avx_vnni", with_avx512_vnni = with_bfloat16 || processor == "avx512_vnni";
  if (!with_avx_vnni && !with_avx512_vnni) refuse("EMULATED_PROCESSOR must be amx, avx512_bf16, avx512_vnni or avx_vnni");
  const char* const held = std::getenv("ATEN_CPU_CAPABILITY");
  if (!with_avx512_vnni && (held == nullptr || std::string_view(held) != "avx2")) refuse("avx_vnni wants ATEN_CPU_CAPABILITY=avx2");
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512f")) refuse("this processor has no AVX-512");
  set_handler = reinterpret_cast<Sigaction>(dlsym(RTLD_NEXT, "sigaction"));
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  action.sa_sigaction = on_unknown_instruction;
  set_handler(SIGILL, &action, nullptr);
  told_by_cpuid = let_cpuid_fault(true);
  if (told_by_cpuid) {
    action.sa_sigaction = on_fault;
    set_handler(SIGSEGV, &action, nullptr);
  } else if (!with_tiles) {
    refuse("CPUID cannot be made to fault on this processor and kernel");
  }
  ready = true;
}

}  // namespace
}  // namespace emulation

// What PyTorch found of the processor's instructions, and tiles. `Answer` is laid out as PyTorch's.
namespace at::cpu {

struct Answer {
  union { bool is_true; uint64_t any; };
  uint32_t kind;
};
using Answers = std::unordered_map<std::string, Answer>;

void* in_pytorch(const char* name) { return dlsym(dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD), name); }

Answers get_cpu_capabilities() {
  Answers answers = reinterpret_cast<Answers (*)()>(in_pytorch("_ZN2at3cpu20get_cpu_capabilitiesB5cxx11Ev"))();
  if (emulation::with_tiles) answers.at("amx_bf16").is_true = answers.at("amx_int8").is_true = true;
  return answers;
}

bool init_amx() {
  if (emulation::with_tiles) return true;
  return reinterpret_cast<bool (*)()>(in_pytorch("_ZN2at3cpu8init_amxEv"))();
}

}  // namespace at::cpu

// How many instructions were computed so far, for tests to see that theirs were.
extern "C" uint64_t emulated_instructions() { return emulation::emulated; }

// Handlers of others, such as Python's faulthandler, must not take the place of ours.
extern "C" int sigaction(int signal, const struct sigaction* action, struct sigaction* before) {
  using namespace emulation;
  if (set_handler == nullptr) set_handler = reinterpret_cast<Sigaction>(dlsym(RTLD_NEXT, "sigaction"));
  const bool ours = ready && action != nullptr && (signal == SIGILL || signal == SIGSEGV);
  return set_handler(signal, ours ? nullptr : action, before);
}

// A kernel that knows no tiles would refuse the leave to use them, for which PyTorch and oneDNN ask by `syscall`.
extern "C" long syscall(long number, ...) noexcept {
  using namespace emulation;
  std::va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (with_tiles && number == SYS_arch_prctl && arguments[0] == ARCH_REQ_XCOMP_PERM) return 0;
  if (with_tiles && number == SYS_arch_prctl && arguments[0] == ARCH_GET_XCOMP_PERM) {
    *reinterpret_cast<uint64_t*>(arguments[1]) = TILE_STATES;
    return 0;
  }
  const long result = call_kernel(number, arguments);
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}
