// Which keys a token sees.
#pragma once
#include <algorithm>
#include <cstdint>

namespace selvage {

// Keys `first` to `last` - 1 of a sequence.
struct Keys {
  int64_t first, last;
  bool empty() const { return first >= last; }
};

// Rules of visibility; 0 stands for no window. A window is exclusive: token i sees key j where i - j < window, and where the
// rule is not causal also j - i < window.
struct Visibility {
  bool causal;
  int64_t window;

  // What the token at `position` sees of a sequence's first `count` keys. Both ends grow with the position.
  Keys at(int64_t position, int64_t count) const {
    Keys keys{0, count};
    if (causal) keys.last = std::min(keys.last, position + 1);
    if (window > 0) {
      keys.first = std::max(keys.first, position - window + 1);
      if (!causal) keys.last = std::min(keys.last, position + window);
    }
    return keys;
  }
};

// Rules for the scores of one layer.
struct Terms {
  float scale, softcap;  // no softcap where it is 0
  Visibility visibility;
};

}  // namespace selvage
