// Memory in lines, which products ask for before they read it.
#pragma once
#include <cstdint>

namespace selvage {

constexpr int64_t LINE_ITEMS = 16;  // items of 32 bits in a line of memory

// Memory that will be read next: `lines` of it are asked for at each look.
struct Ahead {
  const int32_t* next = nullptr;
  int64_t lines = 0;

  // Asks for `items` items in `looks` looks; for none without `next`.
  static Ahead of(const int32_t* next, int64_t items, int64_t looks) {
    return {next, next == nullptr ? 0 : (items / LINE_ITEMS + looks - 1) / looks};
  }
  void ask() {
    for (int64_t i = 0; i < lines; i++, next += LINE_ITEMS) __builtin_prefetch(next, 0, 2);
  }
  void skip(int64_t looks) { next += LINE_ITEMS * lines * looks; }
};

}  // namespace selvage
