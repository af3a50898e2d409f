// Sums along an axis in which each element adds what the one before it has, where a test says so, on a CPU.
#pragma once

#include <ATen/ops/empty.h>

#include <cstring>
#include <optional>

#include "selection.h"

namespace tilec {
namespace scan {

constexpr int64_t LANES = 8;  // rows at a time, whose sums do not wait for one another

// Rows lie `lane` apart, elements of a row `step`, both in elements; from the last element on where `step` is negative.
template <class T, bool SCALED>
void lanes(const T* x, const bool* kept, const T* scale, T* out, int64_t n, int64_t step, int64_t lane, int64_t count) {
  auto along = [&](auto one) {
    constexpr int64_t each = decltype(one)::value;
    T sums[each] = {};
    for (int64_t k = 0, at = 0; k < n; ++k, at += step)
      for (int64_t i = 0; i < each; ++i) {
        int64_t place = at + i * lane;
        T term = SCALED ? sums[i] * scale[place] : sums[i];
        sums[i] = x[place] + (kept[place] ? term : T(0));
        out[place] = sums[i];
      }
  };
  for (; count >= LANES; count -= LANES) {
    along(std::integral_constant<int64_t, LANES>());
    x += LANES * lane, kept += LANES * lane, out += LANES * lane, scale += SCALED ? LANES * lane : 0;
  }
  for (; count; --count) {
    along(std::integral_constant<int64_t, 1>());
    x += lane, kept += lane, out += lane, scale += SCALED ? lane : 0;
  }
}

template <class T>
void all_lanes(const at::Tensor& x, const at::Tensor& kept, const std::optional<at::Tensor>& scale, int64_t axis,
               bool falling, const at::Tensor& out) {
  int64_t n = x.size(axis), inner = x.stride(axis), block = n * inner, first = falling ? (n - 1) * inner : 0;
  int64_t step = falling ? -inner : inner;
  auto* from = static_cast<const T*>(x.const_data_ptr()) + first;
  auto* tests = static_cast<const bool*>(kept.const_data_ptr()) + first;
  auto* factors = scale ? static_cast<const T*>(scale->const_data_ptr()) + first : nullptr;
  auto* to = static_cast<T*>(out.mutable_data_ptr()) + first;
  auto each = [&](int64_t at, int64_t lane, int64_t count) {
    if (factors)
      lanes<T, true>(from + at, tests + at, factors + at, to + at, n, step, lane, count);
    else
      lanes<T, false>(from + at, tests + at, nullptr, to + at, n, step, lane, count);
  };
  int64_t outer = block ? x.numel() / block : 0;
  if (inner == 1) return each(0, block, outer);
  for (int64_t i = 0; i < outer; ++i) each(i * block, 1, inner);
}

// `x` and, where `kept`, what the element before has, times the `scale`; nothing where torch has to do it.
inline std::optional<at::Tensor> running(
    const at::Tensor& x, const at::Tensor& kept, const std::optional<at::Tensor>& scale, int64_t axis, bool falling) {
  auto dtype = x.scalar_type();
  auto fits = [&](const at::Tensor& t) {
    return selection::plain(t) && t.is_contiguous() && t.sizes() == x.sizes() && !t.is_conj();
  };
  if (!fits(x) || !fits(kept) || kept.scalar_type() != at::kBool) return {};
  if (scale && (!fits(*scale) || scale->scalar_type() != dtype)) return {};
  auto run = dtype == at::kFloat    ? all_lanes<float>
             : dtype == at::kDouble ? all_lanes<double>
             : dtype == at::kLong   ? all_lanes<int64_t>
                                    : nullptr;
  if (!run) return {};
  auto out = at::empty(x.sizes(), x.options());
  if (x.numel()) run(x, kept, scale, axis, falling, out);
  return out;
}

}  // namespace scan
}  // namespace tilec
