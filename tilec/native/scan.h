// Sums along an axis in which each element adds what the one before it has, where a test says so, on a CPU.
#pragma once

#include <ATen/ops/empty.h>

#include <cstring>
#include <optional>
#include <type_traits>

#include "selection.h"

namespace tilec {
namespace scan {

constexpr int64_t LANES = 4;  // rows at a time, whose sums do not wait for one another

template <class T>
using Same = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

// Whether elements add what the one before them has: truths, and values that are equal to the one before.
struct Truths {
  using Value = bool;
  static bool kept(bool test, bool) { return test; }
};
template <class V>
struct Equalities {
  using Value = V;
  static bool kept(V value, V before) { return value == before; }
};

// Rows lie `lane` apart, elements of a row `step`, both in elements; from the last element on where `step` is negative.
template <class T, class Test, bool SCALED>
void lanes(
    const T* x, const typename Test::Value* tests, const T* scale, T* out, int64_t n, int64_t step, int64_t lane,
    int64_t count) {
  auto along = [&](auto one) {
    constexpr int64_t each = decltype(one)::value;
    T sums[each] = {};
    typename Test::Value before[each] = {};
    for (int64_t k = 0, at = 0; k < n; ++k, at += step)
      _Pragma("GCC unroll 4") for (int64_t i = 0; i < each; ++i) {
        int64_t place = at + i * lane;
        T term = SCALED ? sums[i] * scale[place] : sums[i];
        Same<T> bits;
        std::memcpy(&bits, &term, sizeof term);
        bits &= -Same<T>(Test::kept(tests[place], before[i]));  // no branch
        std::memcpy(&term, &bits, sizeof term);
        before[i] = tests[place];
        out[place] = sums[i] = x[place] + term;
      }
  };
  auto next = [&](int64_t rows) { x += rows * lane, tests += rows * lane, out += rows * lane, scale += SCALED * rows * lane; };
  for (; count >= LANES; count -= LANES, next(LANES)) along(std::integral_constant<int64_t, LANES>());
  for (; count; --count, next(1)) along(std::integral_constant<int64_t, 1>());
}

template <class T, class Test>
void all_lanes(
    const at::Tensor& x, const at::Tensor& tests, const std::optional<at::Tensor>& scale, int64_t axis, bool falling,
    const at::Tensor& out) {
  int64_t n = x.size(axis), inner = x.stride(axis), block = n * inner, first = falling ? (n - 1) * inner : 0;
  int64_t step = falling ? -inner : inner, outer = x.numel() / block;
  auto* from = static_cast<const T*>(x.const_data_ptr()) + first;
  auto* asked = static_cast<const typename Test::Value*>(tests.const_data_ptr()) + first;
  auto* factors = scale ? static_cast<const T*>(scale->const_data_ptr()) + first : nullptr;
  auto* to = static_cast<T*>(out.mutable_data_ptr()) + first;
  auto each = [&](int64_t at, int64_t lane, int64_t count) {
    if (factors)
      lanes<T, Test, true>(from + at, asked + at, factors + at, to + at, n, step, lane, count);
    else
      lanes<T, Test, false>(from + at, asked + at, nullptr, to + at, n, step, lane, count);
  };
  if (inner == 1) return each(0, block, outer);
  for (int64_t i = 0; i < outer; ++i) each(i * block, 1, inner);
}

template <class T>
auto of_tests(at::ScalarType dtype) {
  return dtype == at::kBool     ? all_lanes<T, Truths>
         : dtype == at::kFloat  ? all_lanes<T, Equalities<float>>
         : dtype == at::kDouble ? all_lanes<T, Equalities<double>>
                                : nullptr;
}

// `x` and, where `tests` are true or, if they are values, equal to the one before, what the element before has, times
// the `scale`; nothing where torch has to do it.
inline std::optional<at::Tensor> running(
    const at::Tensor& x, const at::Tensor& tests, const std::optional<at::Tensor>& scale, int64_t axis, bool falling) {
  auto dtype = x.scalar_type();
  auto fits = [&](const at::Tensor& t) {
    return selection::plain(t) && t.is_contiguous() && t.sizes() == x.sizes() && !t.is_conj();
  };
  if (!fits(x) || !fits(tests) || (scale && (!fits(*scale) || scale->scalar_type() != dtype))) return {};
  auto run = dtype == at::kFloat    ? of_tests<float>(tests.scalar_type())
             : dtype == at::kDouble ? of_tests<double>(tests.scalar_type())
             : dtype == at::kLong   ? of_tests<int64_t>(tests.scalar_type())
                                    : nullptr;
  if (!run) return {};
  auto out = at::empty(x.sizes(), x.options());
  if (x.numel()) run(x, tests, scale, axis, falling, out);
  return out;
}

}  // namespace scan
}  // namespace tilec
