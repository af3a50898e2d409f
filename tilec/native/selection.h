// One of two values by a test of each element, and tests alone, on a CPU: a pass that branches nowhere.
#pragma once

#include <ATen/TensorIterator.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "wide.h"

namespace tilec {
namespace selection {

constexpr int64_t CHUNK = 512;  // elements at a time, of which operands that do not lie side by side are copied
constexpr int MOST_OPERANDS = 4;
using Loop = void (*)(const char* const*, char*, int64_t);

// Loops over elements that lie side by side: of a mask, of a comparison, and comparisons as truths.
#define TILEC_MASKED(NAME, T)                                                         \
  TILEC_WIDE void NAME(const char* const* from, char* to, int64_t n) {                \
    auto mask = reinterpret_cast<const uint8_t*>(from[0]);                            \
    auto a = reinterpret_cast<const T*>(from[1]), b = reinterpret_cast<const T*>(from[2]); \
    auto out = reinterpret_cast<T*>(to);                                              \
    for (int64_t i = 0; i < n; ++i) out[i] = mask[i] ? a[i] : b[i];                   \
  }
#define TILEC_COMPARED(NAME, T, TEST)                                                 \
  TILEC_WIDE void NAME##_chosen(const char* const* from, char* to, int64_t n) {       \
    auto x = reinterpret_cast<const T*>(from[0]), y = reinterpret_cast<const T*>(from[1]); \
    auto a = reinterpret_cast<const T*>(from[2]), b = reinterpret_cast<const T*>(from[3]); \
    auto out = reinterpret_cast<T*>(to);                                              \
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] TEST y[i] ? a[i] : b[i];            \
  }                                                                                   \
  TILEC_WIDE void NAME##_truth(const char* const* from, char* to, int64_t n) {        \
    auto x = reinterpret_cast<const T*>(from[0]), y = reinterpret_cast<const T*>(from[1]); \
    auto out = reinterpret_cast<uint8_t*>(to);                                        \
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] TEST y[i];                          \
  }
#define TILEC_TESTS(NAME, T)          \
  TILEC_COMPARED(NAME##_eq, T, ==)    \
  TILEC_COMPARED(NAME##_ne, T, !=)    \
  TILEC_COMPARED(NAME##_lt, T, <)     \
  TILEC_COMPARED(NAME##_le, T, <=)

TILEC_MASKED(masked_1, uint8_t)
TILEC_MASKED(masked_2, uint16_t)
TILEC_MASKED(masked_4, uint32_t)
TILEC_MASKED(masked_8, uint64_t)
TILEC_TESTS(of_float, float)
TILEC_TESTS(of_double, double)
TILEC_TESTS(of_int8, int8_t)
TILEC_TESTS(of_uint8, uint8_t)
TILEC_TESTS(of_int16, int16_t)
TILEC_TESTS(of_int32, int32_t)
TILEC_TESTS(of_int64, int64_t)

// Limits: the least and the most value inside, and what is on the edge of them, where that is a number.
#define TILEC_INSIDE(NAME, T)                                                         \
  TILEC_WIDE void NAME(const char* const* from, char* to, int64_t n) {                \
    auto g = reinterpret_cast<const T*>(from[0]), x = reinterpret_cast<const T*>(from[1]); \
    auto limits = reinterpret_cast<const T*>(from[2]);                                \
    T least = limits[0], most = limits[1], low = limits[2], high = limits[3];         \
    auto out = reinterpret_cast<T*>(to);                                              \
    for (int64_t i = 0; i < n; ++i) {                                                 \
      T value = x[i], half = g[i] * T(0.5), part = g[i];                              \
      part = value == low ? half : part;                                              \
      part = value == high ? half : part;                                             \
      part = value >= least ? part : T(0);                                            \
      out[i] = value <= most ? part : T(0);                                           \
    }                                                                                 \
  }
TILEC_INSIDE(inside_float, float)
TILEC_INSIDE(inside_double, double)

// Quotients of values and of the numbers that stand in the bits of integers from one on.
#define TILEC_SHARES(NAME, T, B)                                                      \
  TILEC_WIDE void NAME(const char* const* from, char* to, int64_t n) {                \
    auto x = reinterpret_cast<const T*>(from[0]);                                     \
    auto bits = reinterpret_cast<const B*>(from[1]);                                  \
    int32_t first = *reinterpret_cast<const int32_t*>(from[2]);                       \
    auto out = reinterpret_cast<T*>(to);                                              \
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] / T(int32_t(bits[i]) >> first);     \
  }
TILEC_SHARES(shares_float_byte, float, uint8_t)
TILEC_SHARES(shares_float_short, float, int16_t)
TILEC_SHARES(shares_double_byte, double, uint8_t)
TILEC_SHARES(shares_double_short, double, int16_t)

struct Tests {
  at::ScalarType dtype;
  Loop chosen[4], truth[4];
};

#define TILEC_ROW(DTYPE, NAME)                                             \
  {                                                                        \
    DTYPE, {NAME##_eq_chosen, NAME##_ne_chosen, NAME##_lt_chosen, NAME##_le_chosen}, \
        {NAME##_eq_truth, NAME##_ne_truth, NAME##_lt_truth, NAME##_le_truth}         \
  }
inline const Tests* tests_of(at::ScalarType dtype) {
  static const Tests table[] = {
      TILEC_ROW(at::kFloat, of_float), TILEC_ROW(at::kDouble, of_double), TILEC_ROW(at::kChar, of_int8),
      TILEC_ROW(at::kByte, of_uint8),  TILEC_ROW(at::kBool, of_uint8),    TILEC_ROW(at::kShort, of_int16),
      TILEC_ROW(at::kInt, of_int32),   TILEC_ROW(at::kLong, of_int64)};
  for (const Tests& row : table)
    if (row.dtype == dtype) return &row;
  return nullptr;
}

// `count` elements of `size` bytes from one place to another.
inline void copied(char* to, int64_t to_step, const char* from, int64_t from_step, int64_t size, int64_t count) {
  auto each = [&](auto value) {
    using T = decltype(value);
    for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * to_step, from + i * from_step, sizeof(T));
  };
  if (size == 1) each(uint8_t());
  if (size == 2) each(uint16_t());
  if (size == 4) each(uint32_t());
  if (size == 8) each(uint64_t());
}

// The loop over all elements; what does not lie side by side goes through rooms of a chunk. `beside`: what it is given
// after them; `exchanged`: the first two the other way round.
inline void walked(at::TensorIterator& elements, Loop loop, const void* beside, bool exchanged) {
  int operands = elements.ntensors() - 1;
  int64_t sizes[MOST_OPERANDS + 1];
  for (int k = 0; k <= operands; ++k) sizes[k] = int64_t(elements.element_size(k));
  elements.for_each([&](char** data, const int64_t* strides, int64_t n, int64_t rows) {
    alignas(64) char rooms[MOST_OPERANDS + 1][CHUNK * 8];
    const char *from[MOST_OPERANDS + 1] = {}, *filled[MOST_OPERANDS + 1] = {};  // the one value that a room is full of
    from[operands] = static_cast<const char*>(beside);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t first = 0; first < n; first += CHUNK) {
        int64_t count = std::min(CHUNK, n - first);
        for (int k = 1; k <= operands; ++k) {
          const char* place = data[k] + row * strides[operands + 1 + k] + first * strides[k];
          bool together = strides[k] == sizes[k];
          from[k - 1] = together ? place : rooms[k];
          if (together || filled[k] == place) continue;
          copied(rooms[k], sizes[k], place, strides[k], sizes[k], strides[k] ? count : std::min(CHUNK, n));
          filled[k] = strides[k] ? nullptr : place;
        }
        char* place = data[0] + row * strides[operands + 1] + first * strides[0];
        bool together = strides[0] == sizes[0];
        const char* given[MOST_OPERANDS + 1];
        std::copy_n(from, MOST_OPERANDS + 1, given);
        if (exchanged) std::swap(given[0], given[1]);
        loop(given, together ? place : rooms[0], count);
        if (!together) copied(place, strides[0], rooms[0], sizes[0], sizes[0], count);
      }
  });
}

inline at::Tensor over(
    Loop loop, const std::optional<at::Tensor>& out, at::ScalarType dtype, std::initializer_list<at::Tensor> operands,
    const void* beside = nullptr, bool exchanged = false) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).resize_outputs(false);
  if (out)
    config.add_output(*out);
  else
    config.add_owned_output(at::Tensor()).declare_static_dtype(dtype);
  for (const at::Tensor& t : operands) config.add_owned_const_input(t);
  if (!out) config.resize_outputs(true);
  auto elements = config.build();
  walked(elements, loop, beside, exchanged);
  return elements.output(0);
}

inline bool plain(const at::Tensor& t) {
  using K = c10::DispatchKey;
  auto keys = t.key_set();
  return t.device().is_cpu() && t.layout() == at::kStrided && !t.is_neg() && !keys.has(K::Python) &&
         !keys.has(K::ZeroTensor) && !keys.has(K::FuncTorchBatched) && !keys.has(K::FuncTorchGradWrapper) && !keys.has(K::Functionalize);
}

enum Test { EQ, NE, LT, LE, GT, GE };

// The test that this one is, with its operands exchanged where it is another's mirror image.
inline std::pair<int, bool> mirrored(int test) {
  if (test < GT) return {test, false};
  return {test == GT ? LT : LE, true};
}

// What follows gives nothing where torch has to do it.
inline std::optional<at::Tensor> compared(int test, at::Tensor x, at::Tensor y) {
  const Tests* row = tests_of(x.scalar_type());
  if (!row || x.scalar_type() != y.scalar_type() || !plain(x) || !plain(y)) return {};
  auto [same, exchanged] = mirrored(test);
  return over(row->truth[same], {}, at::kBool, {x, y}, nullptr, exchanged);
}

inline std::optional<at::Tensor> chosen(
    const at::Tensor& mask, const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& out) {
  if (mask.scalar_type() != at::kBool || a.scalar_type() != b.scalar_type() || !plain(mask) || !plain(a) || !plain(b))
    return {};
  if (out && (out->scalar_type() != a.scalar_type() || !plain(*out))) return {};
  int64_t size = a.element_size();
  Loop loop = size == 1 ? masked_1 : size == 2 ? masked_2 : size == 4 ? masked_4 : size == 8 ? masked_8 : nullptr;
  if (!loop) return {};
  return over(loop, out, a.scalar_type(), {mask, a, b});
}

inline std::optional<at::Tensor> chosen_by(
    int test, at::Tensor x, at::Tensor y, const at::Tensor& a, const at::Tensor& b,
    const std::optional<at::Tensor>& out) {
  auto dtype = x.scalar_type();
  if (dtype != a.scalar_type() || dtype != y.scalar_type()) {
    auto mask = compared(test, std::move(x), std::move(y));
    return mask ? chosen(*mask, a, b, out) : std::nullopt;
  }
  const Tests* row = tests_of(dtype);
  if (!row || dtype != b.scalar_type() || !plain(x) || !plain(y) || !plain(a) || !plain(b)) return {};
  if (out && (out->scalar_type() != dtype || !plain(*out))) return {};
  auto [same, exchanged] = mirrored(test);
  return over(row->chosen[same], out, dtype, {x, y, a, b}, nullptr, exchanged);
}

// `g` where `x` is between limits, half of it on one of them, and zero elsewhere; a limit that is infinite has no edge.
inline std::optional<at::Tensor> inside(
    const at::Tensor& g, const at::Tensor& x, double least, double most, const std::optional<at::Tensor>& out) {
  auto dtype = g.scalar_type();
  if (x.scalar_type() != dtype || (dtype != at::kFloat && dtype != at::kDouble) || !plain(g) || !plain(x)) return {};
  if (out && (out->scalar_type() != dtype || !plain(*out))) return {};
  double low = std::isinf(least) ? NAN : least, high = std::isinf(most) ? NAN : most;
  double wide[] = {least, most, low, high};
  float narrow[] = {float(least), float(most), float(low), float(high)};
  bool single = dtype == at::kFloat;
  return over(single ? inside_float : inside_double, out, dtype, {g, x}, single ? (const void*)narrow : wide);
}

// `x` divided by the integers that stand in bits from the `first` on.
inline std::optional<at::Tensor> shares(
    const at::Tensor& x, const at::Tensor& bits, int64_t first, const std::optional<at::Tensor>& out) {
  auto dtype = x.scalar_type(), integer = bits.scalar_type();
  bool known = (dtype == at::kFloat || dtype == at::kDouble) && (integer == at::kByte || integer == at::kShort);
  if (!known || !plain(x) || !plain(bits) || (out && (out->scalar_type() != dtype || !plain(*out)))) return {};
  Loop loop = dtype == at::kFloat ? (integer == at::kByte ? shares_float_byte : shares_float_short)
                                  : (integer == at::kByte ? shares_double_byte : shares_double_short);
  int32_t from = int32_t(first);
  return over(loop, out, dtype, {x, bits}, &from);
}

}  // namespace selection
}  // namespace tilec
