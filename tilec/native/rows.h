// Rows of a tile with values of several parts, as `parts.h` divides tensors: loops that a compiler vectorises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "wide.h"

#define TILEC_INLINE __attribute__((always_inline)) inline

namespace tilec {
namespace parts {

using std::size_t;

constexpr int OPERANDS = 3;

// What one part gives to rows of a tile, whose elements lie side by side: where its operands begin, and their steps in
// bytes from row to row.
struct Source {
  const char* from[OPERANDS];
  int64_t row_steps[OPERANDS];
  int64_t number;
};
struct Rows {
  char* to;
  int64_t rows, elements, row_step;
  const Source* sources;
  size_t count;
  bool fresh;  // what is there does not count
};
using Loop = void (*)(const Rows&);

// 16 bits that are the first ones of a float.
struct bfloat16 {
  uint16_t bits;
  TILEC_INLINE operator float() const {
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  TILEC_INLINE static bfloat16 first_of(float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, sizeof wide);
    return {uint16_t(wide >> 16)};
  }
};
template <class T>
using Computed = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;
template <class T>
TILEC_INLINE T stored(Computed<T> value) {  // what comes from operands of this type and is no sum of them
  if constexpr (std::is_same_v<T, bfloat16>)
    return bfloat16::first_of(value);
  else
    return value;
}

// Of operands of one type; sums of 16 bits are floats. `start`: what elements without a value hold; `next`: with one
// more.
template <class T>
struct OfOneType {
  static constexpr int OPERANDS = 1;
  using Value = Computed<T>;
  using Out = T;
  using First = T;
  using Second = T;
  using Third = T;
  using Number = Value;
};

// A value where something is true, else 0: a mask, without which compilers branch.
template <class T>
TILEC_INLINE T where(bool test, T a) {
  std::conditional_t<sizeof(T) == 4, int32_t, int64_t> bits;
  std::memcpy(&bits, &a, sizeof a);
  bits &= -decltype(bits)(test);
  std::memcpy(&a, &bits, sizeof a);
  return a;
}
template <class T, bool LARGEST>
struct Extremum : OfOneType<T> {
  using V = Computed<T>;
  static constexpr V start = (LARGEST ? -1 : 1) * std::numeric_limits<V>::infinity();
  TILEC_INLINE static V next(V before, V, V x, V, V) {
    return (LARGEST ? x > before : x < before) | (x != x) ? x : before;
  }
};
template <class T>
struct Added : OfOneType<T> {
  using V = Computed<T>;
  using Out = V;
  static constexpr V start = V(-0.0);
  TILEC_INLINE static V next(V before, V, V x, V, V) { return before + x; }
};
template <class T, class B>
struct Tests : OfOneType<T> {  // equality, counted as a number
  static constexpr int OPERANDS = 2;
  using V = Computed<T>;
  using Out = B;
  using Number = B;
  static constexpr B start = 0;
  TILEC_INLINE static B next(B before, B number, V x, V y, V) {
    if constexpr (std::is_floating_point_v<B>)
      return before + where(x == y, number);
    else
      return B(before + (x == y ? number : B(0)));
  }
};
template <class T, class B>
struct Bits : OfOneType<T> {  // values where bits have that of the number
  static constexpr int OPERANDS = 2;
  using V = Computed<T>;
  using Out = V;
  using First = B;
  using Number = B;
  static constexpr V start = 0;
  TILEC_INLINE static V next(V before, B number, B bits, V a, V) {
    using Wide = std::conditional_t<sizeof(V) == 4, int32_t, int64_t>;
    return before + where((Wide(bits) & Wide(number)) != 0, a);
  }
};
template <class T>
struct Chosen : OfOneType<T> {  // values where two others are equal
  static constexpr int OPERANDS = 3;
  using V = Computed<T>;
  using Out = V;
  static constexpr V start = 0;
  TILEC_INLINE static V next(V before, V, V x, V y, V a) { return before + where(x == y, a); }
};

// All rows of as many parts as there are indices, whose values meet in registers.
template <class F, bool FRESH, size_t... K>
TILEC_INLINE void rows_of(const Rows& r, const Source* s, std::index_sequence<K...>) {
  constexpr int second = F::OPERANDS > 1 ? 1 : 0, last = F::OPERANDS - 1;
  int64_t n = r.elements;  // which bytes that are written may alias
  const char *xs[] = {s[K].from[0]...}, *ys[] = {s[K].from[second]...}, *zs[] = {s[K].from[last]...};
  const typename F::Number numbers[] = {typename F::Number(s[K].number)...};
  char* to = r.to;
  for (int64_t number = 0; number < r.rows; ++number) {
    auto out = reinterpret_cast<typename F::Out*>(to);
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) {
      Computed<typename F::Out> sum = FRESH ? F::start : Computed<typename F::Out>(out[i]);
      ((sum = F::next(
            sum, numbers[K], reinterpret_cast<const typename F::First*>(xs[K])[i],
            reinterpret_cast<const typename F::Second*>(ys[K])[i], reinterpret_cast<const typename F::Third*>(zs[K])[i])),
       ...);
      out[i] = stored<typename F::Out>(sum);
    }
    to += r.row_step;
    ((xs[K] += s[K].row_steps[0], ys[K] += s[K].row_steps[second], zs[K] += s[K].row_steps[last]), ...);
  }
}

template <class F>
TILEC_INLINE void rows(const Rows& r) {
  constexpr auto one = std::make_index_sequence<1>();
  constexpr auto four = std::make_index_sequence<4>();
  size_t k = 0;
  if (r.fresh) k = r.count < 4 ? 1 : 4;
  if (k == 1) rows_of<F, true>(r, r.sources, one);
  if (k == 4) rows_of<F, true>(r, r.sources, four);
  for (; k + 4 <= r.count; k += 4) rows_of<F, false>(r, r.sources + k, four);
  for (; k < r.count; ++k) rows_of<F, false>(r, r.sources + k, one);
}

// Every second element side by side, and elements of two rows in turn.
template <class T>
TILEC_INLINE void every_second(char* to, const char* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) reinterpret_cast<T*>(to)[i] = reinterpret_cast<const T*>(from)[2 * i];
}
template <class T>
TILEC_INLINE void in_turn(char* to, const char* first, const char* second, int64_t count) {
  auto out = reinterpret_cast<T*>(to);
  auto a = reinterpret_cast<const T*>(first), b = reinterpret_cast<const T*>(second);
  _Pragma("GCC ivdep") for (int64_t i = 0; i < count; ++i) out[2 * i] = a[i], out[2 * i + 1] = b[i];
}

#define TILEC_ROWS(NAME, ...) \
  TILEC_WIDE void NAME(const Rows& r) { rows<__VA_ARGS__>(r); }
#define TILEC_FLOATING(T, SUM)                    \
  TILEC_ROWS(maximum_##T, Extremum<T, true>)      \
  TILEC_ROWS(minimum_##T, Extremum<T, false>)     \
  TILEC_ROWS(sum_##T, Added<T>)                   \
  TILEC_ROWS(tests_byte_##T, Tests<T, uint8_t>)   \
  TILEC_ROWS(tests_short_##T, Tests<T, int16_t>)  \
  TILEC_ROWS(tests_sum_##T, Tests<T, SUM>)        \
  TILEC_ROWS(chosen_##T, Chosen<T>)               \
  TILEC_ROWS(bits_byte_##T, Bits<T, uint8_t>)     \
  TILEC_ROWS(bits_short_##T, Bits<T, int16_t>)
TILEC_FLOATING(float, float)
TILEC_FLOATING(double, double)
TILEC_FLOATING(bfloat16, float)

TILEC_WIDE void every_second(char* to, const char* from, int64_t size, int64_t count) {
  if (size == 2) every_second<uint16_t>(to, from, count);
  if (size == 4) every_second<uint32_t>(to, from, count);
  if (size == 8) every_second<uint64_t>(to, from, count);
}
TILEC_WIDE void in_turn(char* to, const char* first, const char* second, int64_t size, int64_t count) {
  if (size == 2) in_turn<uint16_t>(to, first, second, count);
  if (size == 4) in_turn<uint32_t>(to, first, second, count);
  if (size == 8) in_turn<uint64_t>(to, first, second, count);
}

}  // namespace parts
}  // namespace tilec
