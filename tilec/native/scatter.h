// Rows added at computed positions, in order, and whether positions lie between two numbers, on a CPU.
#pragma once

#include <optional>

#include "selection.h"

namespace tilec {
namespace scatter {

using selection::plain;

// Rows of `length` values side by side, `step` elements apart in both tensors; false at the first position outside.
template <class T, class I>
__attribute__((always_inline)) inline bool added(
    T* total, int64_t rows, int64_t row_step, const I* at, const T* values, int64_t count, int64_t step, int64_t length) {
  for (int64_t k = 0; k < count; ++k, values += step) {
    int64_t row = at[k];
    if (uint64_t(row) >= uint64_t(rows)) return false;
    T* to = total + row * row_step;
    _Pragma("GCC ivdep") for (int64_t i = 0; i < length; ++i) to[i] += values[i];
  }
  return true;
}

#define TILEC_ADDED(NAME, T, I)                                                                                  \
  TILEC_WIDE bool NAME(                                                                                          \
      void* total, int64_t rows, int64_t row_step, const void* at, const void* values, int64_t count, int64_t step, \
      int64_t length) {                                                                                          \
    return added<T, I>(                                                                                          \
        static_cast<T*>(total), rows, row_step, static_cast<const I*>(at), static_cast<const T*>(values), count, step, \
        length);                                                                                                 \
  }
TILEC_ADDED(added_float_int, float, int32_t)
TILEC_ADDED(added_float_long, float, int64_t)
TILEC_ADDED(added_double_int, double, int32_t)
TILEC_ADDED(added_double_long, double, int64_t)

// How many elements a row has, where they lie side by side.
inline std::optional<int64_t> length_of(const at::Tensor& t) {
  int64_t length = 1;
  for (int64_t d = t.dim() - 1; d > 0; --d) {
    if (t.size(d) != 1 && t.stride(d) != length) return {};
    length *= t.size(d);
  }
  return length;
}

// Rows of `values` added to the rows of `total` that `at` says; false where torch has to do it.
inline bool add_rows(const at::Tensor& total, const at::Tensor& at, const at::Tensor& values) {
  auto dtype = total.scalar_type(), integer = at.scalar_type();
  bool single = dtype == at::kFloat, narrow = integer == at::kInt;
  bool known = (single || dtype == at::kDouble) && (narrow || integer == at::kLong) && values.scalar_type() == dtype;
  if (!known || !plain(total) || !plain(at) || !plain(values) || at.dim() != 1 || !at.is_contiguous()) return false;
  if (total.dim() < 1 || values.dim() != total.dim() || values.size(0) != at.size(0)) return false;
  if (total.sizes().slice(1) != values.sizes().slice(1)) return false;
  auto length = length_of(total);
  if (!length || !length_of(values)) return false;
  auto run = single ? (narrow ? added_float_int : added_float_long) : (narrow ? added_double_int : added_double_long);
  bool inside = run(
      total.mutable_data_ptr(), total.size(0), total.stride(0), at.const_data_ptr(), values.const_data_ptr(),
      at.size(0), values.stride(0), *length);
  TORCH_CHECK_INDEX(inside, "a position lies outside of the rows that values are added to");
  return true;
}

template <class I>
__attribute__((always_inline)) inline bool all_between(const I* t, int64_t n, int64_t first, int64_t last) {
  bool inside = true;
  for (int64_t i = 0; i < n; ++i) inside &= (t[i] >= first) & (t[i] <= last);
  return inside;
}
#define TILEC_BETWEEN(NAME, I)                                                     \
  TILEC_WIDE bool NAME(const void* t, int64_t n, int64_t first, int64_t last) {    \
    return all_between(static_cast<const I*>(t), n, first, last);                  \
  }
TILEC_BETWEEN(between_int, int32_t)
TILEC_BETWEEN(between_long, int64_t)

// Whether all integers are from a first to a last one; nothing where torch has to say it.
inline std::optional<bool> within(const at::Tensor& t, int64_t first, int64_t last) {
  bool narrow = t.scalar_type() == at::kInt;
  if ((!narrow && t.scalar_type() != at::kLong) || !plain(t) || !t.is_non_overlapping_and_dense()) return {};
  return (narrow ? between_int : between_long)(t.const_data_ptr(), t.numel(), first, last);
}

}  // namespace scatter
}  // namespace tilec
