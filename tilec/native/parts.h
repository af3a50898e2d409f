// Values combined into parts of one tensor, each part with operands of its own: the elements of windows, on a CPU. All
// parts of a tile follow one another while it is in the first cache.
#pragma once

#include "rows.h"
#include "selection.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

namespace tilec {
namespace parts {

using selection::plain;
constexpr int64_t TILE = 2048;  // elements
constexpr int64_t SHORT = 8;    // of a row that is no row
constexpr size_t DIMS = 12;
enum Combination { MAXIMUM, MINIMUM, SUM, TESTS, BITS };

// Of which types: the output's, and each operand's.
struct Known {
  Combination combination;
  at::ScalarType out;
  std::vector<at::ScalarType> operands;
  Loop loop;
};

inline Loop loop_of(int combination, at::ScalarType out, const std::vector<at::ScalarType>& operands) {
#define TILEC_KNOWN(T, K)                                                                          \
  {MAXIMUM, K, {K}, maximum_##T}, {MINIMUM, K, {K}, minimum_##T}, {SUM, K, {K}, sum_##T},           \
      {TESTS, at::kByte, {K, K}, tests_byte_##T}, {TESTS, at::kShort, {K, K}, tests_short_##T},     \
      {BITS, K, {at::kByte, K}, bits_byte_##T}, {BITS, K, {at::kShort, K}, bits_short_##T}
  static const Known table[] = {TILEC_KNOWN(float, at::kFloat), TILEC_KNOWN(double, at::kDouble)};
  for (const Known& row : table)
    if (row.combination == combination && row.out == out && row.operands == operands) return row.loop;
  return nullptr;
}

// A part: its first places and how many there are, of each dimension of the output; operands, and their steps in bytes.
struct Part {
  std::array<int64_t, DIMS> first, count;
  std::array<std::array<int64_t, DIMS>, OPERANDS> steps;
  std::array<const char*, OPERANDS> data;
  int64_t number;

  bool has(size_t d, int64_t place) const { return place >= first[d] && place < first[d] + count[d]; }
};

struct Frame {
  std::vector<int64_t> sizes, steps;  // of the output, in bytes
  std::vector<Part> parts;
  size_t operands;
  Loop loop;
  char* data;
  bool fresh;  // some part has all elements, and what is there does not count
  std::vector<size_t> outer;
  size_t across, along;  // dimensions of rows and of their elements; that of a size of 1 is one past the others
  int64_t tile_rows, tiles_across;

  // The two dimensions that lie closest together are a tile's.
  void divided() {
    size_t dims = sizes.size();
    std::vector<size_t> order(dims);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::pair(sizes[a] == 1, steps[a]) < std::pair(sizes[b] == 1, steps[b]);
    });
    along = order[0], across = order[1];
    if (sizes[along] < SHORT && sizes[across] > sizes[along]) std::swap(along, across);
    outer.assign(order.begin() + 2, order.end());
    tile_rows = std::clamp<int64_t>(TILE / sizes[along], 1, sizes[across]);
    tiles_across = (sizes[across] + tile_rows - 1) / tile_rows;
  }

  int64_t tiles() const {
    return std::accumulate(
        outer.begin(), outer.end(), tiles_across, [&](int64_t n, size_t d) { return n * sizes[d]; });
  }

  // A part that a tile has elements of: where the first of its rows and elements lie.
  struct Active {
    const Part* part;
    const char* from[OPERANDS];
  };
  struct Room {
    std::vector<Active> whole, others;  // parts with all elements of rows, and without
    std::vector<int64_t> cuts;          // rows at which parts begin or end
    std::vector<Source> sources;
  };

  void tile(int64_t number, Room& room) const {
    int64_t low = number % tiles_across * tile_rows, high = std::min(low + tile_rows, sizes[across]);
    number /= tiles_across;
    int64_t at[DIMS];
    char* to = data;
    for (size_t d : outer) {
      at[d] = number % sizes[d];
      number /= sizes[d];
      to += at[d] * steps[d];
    }
    room.whole.clear(), room.others.clear();
    room.cuts = {low, high};
    for (const Part& part : parts) {
      bool inside = true;
      Active active{&part, {part.data[0], part.data[1]}};
      for (size_t d : outer) {
        inside &= part.has(d, at[d]);
        for (size_t k = 0; k < operands; ++k) active.from[k] += (at[d] - part.first[d]) * part.steps[k][d];
      }
      if (!inside) continue;
      bool all = !part.first[along] && part.count[along] == sizes[along];
      (all ? room.whole : room.others).push_back(active);
      for (int64_t cut : {part.first[across], part.first[across] + part.count[across]})
        if (all && low < cut && cut < high) room.cuts.push_back(cut);
    }
    if (room.cuts.size() > 2) std::sort(room.cuts.begin(), room.cuts.end());
    for (size_t i = 0; i + 1 < room.cuts.size(); ++i)
      if (int64_t row = room.cuts[i], count = room.cuts[i + 1] - row; count > 0) {
        room.sources.clear();
        for (const Active& active : room.whole)
          if (active.part->has(across, row)) room.sources.push_back(source(active, row));
        combined(room, to + row * steps[across], count, sizes[along], fresh);
      }
    for (const Active& active : room.others) {
      const Part& part = *active.part;
      int64_t row = std::max(low, part.first[across]);
      int64_t count = std::min(high, part.first[across] + part.count[across]) - row;
      if (count < 1 || part.count[along] < 1) continue;
      room.sources = {source(active, row)};
      combined(room, to + row * steps[across] + part.first[along] * steps[along], count, part.count[along], false);
    }
  }

  // What a part gives from a row on.
  Source source(const Active& active, int64_t row) const {
    const Part& part = *active.part;
    Source made;
    made.number = part.number;
    for (size_t k = 0; k < operands; ++k) {
      made.from[k] = active.from[k] + (row - part.first[across]) * part.steps[k][across];
      made.row_steps[k] = part.steps[k][across], made.steps[k] = part.steps[k][along];
    }
    return made;
  }

  void combined(const Room& room, char* to, int64_t rows, int64_t elements, bool from_start) const {
    const auto& sources = room.sources;
    if (!sources.empty())
      loop({to, rows, elements, steps[across], steps[along], sources.data(), sources.size(), from_start});
  }

  void run() const {
    int64_t count = tiles(), each = tile_rows * sizes[along] * int64_t(parts.size());
    auto some = [this](int64_t first, int64_t last) {
      Room room;
      for (int64_t i = first; i < last; ++i) tile(i, room);
    };
    int64_t grain = std::max<int64_t>(1, at::internal::GRAIN_SIZE / each);
    if (count <= grain || at::get_num_threads() == 1 || at::in_parallel_region()) return some(0, count);
    // torch's own threads, which this library has not been compiled for: an iterator over bytes that nobody writes
    auto bytes = at::empty({count}, at::kByte);
    auto base = static_cast<char*>(bytes.data_ptr());
    auto elements = at::TensorIterator::nullary_op(bytes);
    elements.for_each(
        [&](char** places, const int64_t*, int64_t n, int64_t rows) {
          some(places[0] - base, places[0] - base + n * rows);
        },
        grain);
  }
};

// Slices of dimensions, `()` for all of each: where they begin, how many places they have, and how far apart; false for
// what slices no tensor of this rank.
inline bool unpacked(py::handle slices, at::IntArrayRef sizes, int64_t* first, int64_t* count, int64_t* step) {
  auto given = py::reinterpret_borrow<py::tuple>(slices);
  if (!given.empty() && given.size() != sizes.size()) return false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    Py_ssize_t from = 0, to = sizes[d], by = 1;
    if (!given.empty() && PySlice_Unpack(given[d].ptr(), &from, &to, &by)) throw py::error_already_set();
    count[d] = PySlice_AdjustIndices(sizes[d], &from, &to, by);
    first[d] = from, step[d] = by;
  }
  return true;
}

// Where the elements of an operand lie that are a part's: `t`, broadcast, or (t, slices).
inline std::optional<at::ScalarType> placed(py::handle item, Part& part, size_t k, size_t dims) {
  bool sliced = py::isinstance<py::tuple>(item);
  const at::Tensor& t = THPVariable_Unpack(sliced ? py::reinterpret_borrow<py::tuple>(item)[0].ptr() : item.ptr());
  if (!plain(t) || t.is_conj()) return {};
  int64_t size = t.element_size(), first[DIMS], count[DIMS], step[DIMS];
  part.data[k] = static_cast<const char*>(t.const_data_ptr());
  part.steps[k].fill(0);
  if (!sliced) {
    auto strides = std::get<1>(at::inferExpandGeometry(t.sizes(), t.strides(), {part.count.data(), dims}));
    for (size_t d = 0; d < dims; ++d) part.steps[k][d] = strides[d] * size;
    return t.scalar_type();
  }
  if (size_t(t.dim()) != dims) return {};
  if (!unpacked(py::reinterpret_borrow<py::tuple>(item)[1], t.sizes(), first, count, step)) return {};
  for (size_t d = 0; d < dims; ++d) {
    if (count[d] != part.count[d]) return {};
    part.data[k] += first[d] * t.stride(d) * size;
    part.steps[k][d] = step[d] * t.stride(d) * size;
  }
  return t.scalar_type();
}

// Whether it is done: a part is (slices of the output, number, operand, ...).
inline bool combined(int combination, const at::Tensor& out, bool fresh, const py::tuple& given) {
  Frame frame{out.sizes().vec()};
  size_t dims = frame.sizes.size();
  if (!plain(out) || out.is_conj() || dims + 2 > DIMS || !out.numel()) return false;
  for (int64_t step : out.strides()) frame.steps.push_back(step * out.element_size());
  frame.sizes.resize(std::max<size_t>(2, dims), 1);
  frame.steps.resize(frame.sizes.size(), 0);
  std::vector<at::ScalarType> types;
  for (auto item : given) {
    auto fields = py::reinterpret_borrow<py::tuple>(item);
    Part part;
    part.data.fill(nullptr);
    part.first.fill(0);
    part.count.fill(1);
    int64_t step[DIMS];
    if (!unpacked(fields[0], out.sizes(), part.first.data(), part.count.data(), step)) return false;
    if (std::any_of(step, step + dims, [](int64_t n) { return n != 1; })) return false;
    part.number = fields[1].cast<int64_t>();
    frame.operands = fields.size() - 2;
    std::vector<at::ScalarType> own;
    for (size_t k = 0; k < frame.operands; ++k) {
      auto type = placed(fields[k + 2], part, k, dims);
      if (!type) return false;
      own.push_back(*type);
    }
    if (!types.empty() && own != types) return false;
    types = own;
    frame.parts.push_back(part);
  }
  frame.loop = loop_of(combination, out.scalar_type(), types);
  if (!frame.loop) return false;
  frame.fresh = fresh;
  frame.data = static_cast<char*>(out.mutable_data_ptr());
  frame.divided();
  py::gil_scoped_release released;
  frame.run();
  return true;
}

}  // namespace parts
}  // namespace tilec
