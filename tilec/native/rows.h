// Rows of a tile with values of several parts, as `parts.h` divides tensors: loops that a compiler vectorises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "wide.h"

#define TILEC_INLINE __attribute__((always_inline)) inline

namespace tilec {
namespace parts {

using std::size_t;

constexpr int OPERANDS = 2;

// What one part gives to rows of a tile: where its operands begin, their steps in bytes from row to row and from element
// to element.
struct Source {
  const char* from[OPERANDS];
  int64_t row_steps[OPERANDS], steps[OPERANDS];
  int64_t number;
};
struct Rows {
  char* to;
  int64_t rows, elements, row_step, step;
  const Source* sources;
  size_t count;
  bool fresh;  // what is there does not count
};
using Loop = void (*)(const Rows&);

// `start`: what elements without a value hold; `next`: with one more.
template <class T, bool LARGEST>
struct Extremum {
  static constexpr int OPERANDS = 1;
  static constexpr bool FILLED = false;
  using Out = T;
  using First = T;
  using Second = T;
  using Number = T;
  static constexpr T start = (LARGEST ? -1 : 1) * std::numeric_limits<T>::infinity();
  TILEC_INLINE static T next(T before, T, T x, T) {
    return (LARGEST ? x > before : x < before) | (x != x) ? x : before;
  }
};
template <class T>
struct Added {
  static constexpr int OPERANDS = 1;
  static constexpr bool FILLED = false;
  using Out = T;
  using First = T;
  using Second = T;
  using Number = T;
  static constexpr T start = T(-0.0);
  TILEC_INLINE static T next(T before, T, T x, T) { return before + x; }
};
template <class T, class B>
struct Tests {  // equality, counted as a number
  static constexpr int OPERANDS = 2;
  static constexpr bool FILLED = false;
  using Out = B;
  using First = T;
  using Second = T;
  using Number = B;
  static constexpr B start = 0;
  TILEC_INLINE static B next(B before, B number, T x, T y) { return B(before + (x == y ? number : B(0))); }
};
template <class T, class B>
struct Bits {  // values where bits have that of the number
  static constexpr int OPERANDS = 2;
  static constexpr bool FILLED = true;  // what compilers vectorise
  using Out = T;
  using First = B;
  using Second = T;
  using Number = B;
  static constexpr T start = 0;
  TILEC_INLINE static T next(T before, B number, B bits, T a) { return before + (bits & number ? a : T(0)); }
};

// All rows of as many parts as there are indices, whose values meet in registers; `STEP`: elements from one to the next
// of all operands, 0 for what is said.
template <class F, int STEP, bool FRESH, size_t... K>
TILEC_INLINE void rows_of(const Rows& r, const Source* s, std::index_sequence<K...>) {
  using X = typename F::First;
  using Y = typename F::Second;
  using Out = typename F::Out;
  constexpr int last = F::OPERANDS - 1;
  int64_t n = r.elements, out_step = STEP ? 1 : r.step / int64_t(sizeof(Out));
  const char *xs[] = {s[K].from[0]...}, *ys[] = {s[K].from[last]...};
  const int64_t x_steps[] = {STEP ? STEP : s[K].steps[0] / int64_t(sizeof(X))...};
  const int64_t y_steps[] = {STEP ? STEP : s[K].steps[last] / int64_t(sizeof(Y))...};
  const typename F::Number numbers[] = {typename F::Number(s[K].number)...};
  char* to = r.to;
  for (int64_t number = 0; number < r.rows; ++number) {
    auto out = reinterpret_cast<Out*>(to);
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) {
      Out sum = FRESH ? F::start : out[i * out_step];
      ((sum = F::next(
            sum, numbers[K], reinterpret_cast<const X*>(xs[K])[i * (STEP ? STEP : x_steps[K])],
            reinterpret_cast<const Y*>(ys[K])[i * (STEP ? STEP : y_steps[K])])),
       ...);
      out[i * out_step] = sum;
    }
    to += r.row_step;
    ((xs[K] += s[K].row_steps[0], ys[K] += s[K].row_steps[last]), ...);
  }
}

template <class F>
TILEC_INLINE int stride(const Rows& r, const Source& s) {
  if (r.step != sizeof(typename F::Out)) return 0;
  if (F::OPERANDS == 2) return s.steps[0] == sizeof(typename F::First) && s.steps[1] == sizeof(typename F::Second);
  int64_t step = s.steps[0] / int64_t(sizeof(typename F::First));
  return step == 1 || step == 2 ? step : 0;
}

template <class F, int STEP, int PARTS>
TILEC_INLINE void together(const Rows& r, const Source* s) {
  using Out = typename F::Out;
  constexpr auto each = std::make_index_sequence<PARTS>();
  constexpr bool IN_REGISTERS = STEP == 1 && PARTS > 1 && !F::FILLED;
  bool fresh = r.fresh && s == r.sources;
  if (IN_REGISTERS && fresh) return rows_of<F, STEP, IN_REGISTERS>(r, s, each);
  for (int64_t number = 0; fresh && number < r.rows; ++number)
    for (int64_t i = 0; i < r.elements; ++i)
      *reinterpret_cast<Out*>(r.to + number * r.row_step + i * r.step) = F::start;
  rows_of<F, STEP, false>(r, s, each);
}

template <class F>
TILEC_INLINE void rows(const Rows& r) {
  constexpr int TWO = F::OPERANDS == 1 ? 2 : 0;
  size_t alike = 0;  // parts from the first on whose elements are side by side
  while (alike < r.count && stride<F>(r, r.sources[alike]) == 1) ++alike;
  size_t k = 0;
  for (; k + 4 <= alike; k += 4) together<F, 1, 4>(r, r.sources + k);
  for (; k + 2 <= alike; k += 2) together<F, 1, 2>(r, r.sources + k);
  for (; k < alike; ++k) together<F, 1, 1>(r, r.sources + k);
  for (; k < r.count; ++k)
    if (stride<F>(r, r.sources[k]) == TWO)
      together<F, TWO, 1>(r, r.sources + k);
    else
      together<F, 0, 1>(r, r.sources + k);
}

#define TILEC_ROWS(NAME, ...) \
  TILEC_WIDE void NAME(const Rows& r) { rows<__VA_ARGS__>(r); }
#define TILEC_FLOATING(T)                           \
  TILEC_ROWS(maximum_##T, Extremum<T, true>)        \
  TILEC_ROWS(minimum_##T, Extremum<T, false>)       \
  TILEC_ROWS(sum_##T, Added<T>)                     \
  TILEC_ROWS(tests_byte_##T, Tests<T, uint8_t>)     \
  TILEC_ROWS(tests_short_##T, Tests<T, int16_t>)    \
  TILEC_ROWS(bits_byte_##T, Bits<T, uint8_t>)       \
  TILEC_ROWS(bits_short_##T, Bits<T, int16_t>)
TILEC_FLOATING(float)
TILEC_FLOATING(double)

}  // namespace parts
}  // namespace tilec
