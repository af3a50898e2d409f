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
constexpr int64_t TILE = 2048;          // elements
constexpr int64_t COPIED_TILE = 8192;   // of all parts, where operands are copied first
constexpr int64_t LEAST_TILE = 256;
constexpr int64_t SHORT = 8;  // of a row that is no row
constexpr size_t DIMS = 12;
enum Combination { MAXIMUM, MINIMUM, SUM, TESTS, BITS, CHOSEN };

// Of which types: the output's, and each operand's.
struct Known {
  Combination combination;
  at::ScalarType out;
  std::vector<at::ScalarType> operands;
  Loop loop;
};

inline Loop loop_of(int combination, at::ScalarType out, const std::vector<at::ScalarType>& operands) {
#define TILEC_KNOWN(T, K, TOTAL)                                                                  \
  {MAXIMUM, K, {K}, maximum_##T}, {MINIMUM, K, {K}, minimum_##T}, {SUM, TOTAL, {K}, sum_##T}, \
      {TESTS, TOTAL, {K, K}, tests_sum_##T}, {CHOSEN, TOTAL, {K, K, K}, chosen_##T},                     \
      {TESTS, at::kByte, {K, K}, tests_byte_##T}, {TESTS, at::kShort, {K, K}, tests_short_##T},      \
      {BITS, TOTAL, {at::kByte, K}, bits_byte_##T}, {BITS, TOTAL, {at::kShort, K}, bits_short_##T}
  static const Known table[] = {
      TILEC_KNOWN(float, at::kFloat, at::kFloat), TILEC_KNOWN(double, at::kDouble, at::kDouble),
      TILEC_KNOWN(bfloat16, at::kBFloat16, at::kFloat)};
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

// A tensor that parts are combined into, of their first operands. A tile goes through one after the other.
struct Pass {
  Loop loop;
  size_t operands;
  int64_t sizes[OPERANDS];  // of operands' elements
  int64_t size;
  char* data;
  std::vector<int64_t> steps;
};

// What one thread needs: parts of a tile, and room for what does not lie side by side.
struct Active {  // a part that a tile has elements of: its rows there, and where they and its elements lie
  const Part* part;
  int64_t row, rows;
  const char* from[OPERANDS];
  int64_t row_steps[OPERANDS];
};
struct Room {
  std::vector<Active> whole, others;  // parts with all elements of rows, and without
  std::vector<int64_t> cuts;          // rows at which parts begin or end
  std::vector<Source> sources;
  std::vector<std::vector<char>> copies;
  size_t copied;
  std::vector<char> out[2];

  char* copy(int64_t bytes) {
    if (copied == copies.size()) copies.emplace_back();
    auto& room = copies[copied++];
    if (int64_t(room.size()) < bytes) room.resize(bytes);
    return room.data();
  }
};
struct Written {  // rows of a tile: where they are, and where they belong
  const char* from;
  char* to;
  int64_t rows;
};

struct Frame {
  std::vector<int64_t> sizes;
  std::vector<Part> parts;
  std::vector<Pass> passes;
  bool fresh;  // some part has all elements, and what is there does not count
  std::vector<size_t> outer;
  size_t across, along;  // dimensions of rows and of their elements; that of a size of 1 is one past the others
  int64_t tile_rows = 0, tiles_across = 0;  // none where there are no elements

  // Dimensions that lie in every tensor as one are one.
  void joined() {
    auto whole = [this](size_t d) {
      return std::all_of(
          parts.begin(), parts.end(), [&](const Part& p) { return !p.first[d] && p.count[d] == sizes[d]; });
    };
    auto as_one = [this](size_t d, size_t e) {
      auto fits = [&](const auto& steps) { return steps[d] == steps[e] * sizes[e]; };
      return std::all_of(passes.begin(), passes.end(), [&](const Pass& p) { return fits(p.steps); }) &&
             std::all_of(parts.begin(), parts.end(), [&](const Part& p) {
               return std::all_of(p.steps.begin(), p.steps.begin() + operands(), fits);
             });
    };
    bool again = true;
    while (std::exchange(again, false))
      for (size_t d = 0; d < sizes.size(); ++d)
        for (size_t e = 0; e < sizes.size(); ++e) {
          if (d == e || sizes[d] == 1 || sizes[e] == 1 || !whole(d) || !whole(e) || !as_one(d, e)) continue;
          for (Part& p : parts) p.count[e] *= std::exchange(p.count[d], 1);
          sizes[e] *= std::exchange(sizes[d], 1);
          again = true;
        }
  }

  size_t operands() const { return passes.back().operands; }

  // The two dimensions that lie closest together are a tile's.
  void divided() {
    std::vector<size_t> order(sizes.size());
    const auto& steps = passes[0].steps;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::pair(sizes[a] == 1, steps[a]) < std::pair(sizes[b] == 1, steps[b]);
    });
    along = order[0], across = order[1];
    if (sizes[along] < SHORT && sizes[across] > sizes[along]) std::swap(along, across);
    outer.assign(order.begin() + 2, order.end());
    bool copies = std::any_of(parts.begin(), parts.end(), [this](const Part& p) {
      return p.steps[0][along] != passes.back().sizes[0];
    });
    int64_t most = copies ? std::max<int64_t>(LEAST_TILE, COPIED_TILE / int64_t(parts.size())) : TILE;
    tile_rows = std::clamp<int64_t>(std::min(most, TILE) / sizes[along], 1, sizes[across]);
    tiles_across = (sizes[across] + tile_rows - 1) / tile_rows;
  }

  int64_t tiles() const {
    return std::accumulate(
        outer.begin(), outer.end(), tiles_across, [&](int64_t n, size_t d) { return n * sizes[d]; });
  }

  // One tile. `kept`: where its rows are left instead, one after the other.
  Written tile(int64_t number, Room& room, std::vector<char>* kept) const {
    int64_t low = number % tiles_across * tile_rows, high = std::min(low + tile_rows, sizes[across]);
    number /= tiles_across;
    int64_t at[DIMS];
    for (size_t d : outer) {
      at[d] = number % sizes[d];
      number /= sizes[d];
    }
    at[across] = low, at[along] = 0;
    found(at, low, high, room);
    Written written{};
    for (size_t k = 0; k < passes.size(); ++k) {
      const Pass& pass = passes[k];
      for (size_t operand = k ? passes[k - 1].operands : 0; operand < pass.operands; ++operand)
        side_by_side(pass, operand, room);
      char* to = pass.data;
      for (size_t d = 0; d < sizes.size(); ++d) to += (sizes[d] > 1 ? at[d] : 0) * pass.steps[d];
      int64_t row_step = pass.steps[across];
      written = {to, to, high - low};
      bool apart = kept || pass.steps[along] != pass.size;
      if (apart) {
        auto& own = kept ? *kept : room.out[0];
        row_step = sizes[along] * pass.size;
        if (int64_t(own.size()) < written.rows * row_step) own.resize(written.rows * row_step);
        written.from = own.data();
        for (int64_t row = 0; !fresh && row < written.rows; ++row)
          selection::copied(
              own.data() + row * row_step, pass.size, to + row * pass.steps[across], pass.steps[along], pass.size,
              sizes[along]);
      }
      combined(pass, apart ? const_cast<char*>(written.from) : to, row_step, low, high, room);
      for (int64_t row = 0; apart && !kept && row < written.rows; ++row)
        selection::copied(
            to + row * pass.steps[across], pass.steps[along], written.from + row * row_step, pass.size, pass.size,
            sizes[along]);
    }
    return written;
  }

  // The parts of a tile.
  void found(const int64_t* at, int64_t low, int64_t high, Room& room) const {
    room.whole.clear(), room.others.clear();
    room.cuts = {low, high};
    room.copied = 0;
    for (const Part& part : parts) {
      int64_t row = std::max(low, part.first[across]), end = std::min(high, part.first[across] + part.count[across]);
      Active active{&part, row, end - row, {}, {}};
      bool inside = active.rows > 0 && part.count[along] > 0;
      for (size_t d : outer) inside &= part.has(d, at[d]);
      if (!inside) continue;
      for (size_t k = 0; k < operands(); ++k) {
        active.row_steps[k] = part.steps[k][across];
        active.from[k] = part.data[k] + (row - part.first[across]) * part.steps[k][across];
        for (size_t d : outer) active.from[k] += (at[d] - part.first[d]) * part.steps[k][d];
      }
      bool all = !part.first[along] && part.count[along] == sizes[along];
      (all ? room.whole : room.others).push_back(active);
      for (int64_t cut : {row, end})
        if (all && low < cut && cut < high) room.cuts.push_back(cut);
    }
    if (room.cuts.size() > 2) std::sort(room.cuts.begin(), room.cuts.end());
  }

  // An operand's elements copied where they do not lie side by side.
  void side_by_side(const Pass& pass, size_t k, Room& room) const {
    int64_t size = pass.sizes[k];
    for (auto* some : {&room.whole, &room.others})
      for (Active& active : *some) {
        int64_t step = active.part->steps[k][along], count = active.part->count[along];
        if (step == size || count == 1) continue;
        char* to = room.copy(active.rows * count * size);
        for (int64_t row = 0; row < active.rows; ++row) {
          const char* from = active.from[k] + row * active.row_steps[k];
          if (step == 2 * size && size > 1)
            every_second(to + row * count * size, from, size, count);
          else
            selection::copied(to + row * count * size, size, from, step, size, count);
        }
        active.from[k] = to, active.row_steps[k] = count * size;
      }
  }

  void combined(const Pass& pass, char* to, int64_t row_step, int64_t low, int64_t high, Room& room) const {
    for (size_t i = 0; i + 1 < room.cuts.size(); ++i)
      if (int64_t row = room.cuts[i], count = room.cuts[i + 1] - row; count > 0) {
        room.sources.clear();
        for (const Active& active : room.whole)
          if (active.part->has(across, row)) room.sources.push_back(source(active, row));
        looped(pass, room, to + (row - low) * row_step, count, sizes[along], row_step, fresh);
      }
    for (const Active& active : room.others) {
      const Part& part = *active.part;
      room.sources = {source(active, active.row)};
      char* first = to + (active.row - low) * row_step + part.first[along] * pass.size;
      looped(pass, room, first, active.rows, part.count[along], row_step, false);
    }
  }

  // What a part gives from a row on.
  static Source source(const Active& active, int64_t row) {
    Source made;
    made.number = active.part->number;
    for (size_t k = 0; k < OPERANDS; ++k) {
      made.from[k] = active.from[k] + (row - active.row) * active.row_steps[k];
      made.row_steps[k] = active.row_steps[k];
    }
    return made;
  }

  static void looped(
      const Pass& pass, Room& room, char* to, int64_t rows, int64_t elements, int64_t row_step, bool from_start) {
    const auto& sources = room.sources;
    if (sources.empty()) return;
    bool as_one = row_step == elements * pass.size;
    for (const Source& s : sources)
      for (size_t k = 0; k < pass.operands; ++k) as_one &= s.row_steps[k] == elements * pass.sizes[k];
    if (as_one) elements *= std::exchange(rows, 1);
    pass.loop({to, rows, elements, row_step, sources.data(), sources.size(), from_start});
  }
};

// Tensors whose elements lie between one another's are written together.
struct Unit {
  const Frame *first, *second;

  static bool fits(const Frame& a, const Frame& b) {
    const Pass &p = a.passes[0], &q = b.passes[0];
    bool alike = a.fresh && a.passes.size() == 1 && p.size > 1 && a.along == b.along && a.across == b.across;
    for (size_t d = 0; d < a.sizes.size(); ++d) alike = alike && (d == a.along || a.sizes[d] == b.sizes[d]);
    int64_t more = a.sizes[a.along] - b.sizes[a.along];
    bool between = q.data == p.data + p.size && p.steps[a.along] == 2 * p.size && p.steps == q.steps;
    return alike && between && (more == 0 || more == 1);
  }

  void tile(int64_t number, Room& room) const {
    if (!second) return void(first->tile(number, room, nullptr));
    Written a = first->tile(number, room, &room.out[0]), b = second->tile(number, room, &room.out[1]);
    const Pass& pass = first->passes[0];
    int64_t n = first->sizes[first->along], m = second->sizes[first->along], size = pass.size;
    for (int64_t row = 0; row < a.rows; ++row) {
      char* to = a.to + row * pass.steps[first->across];
      in_turn(to, a.from + row * n * size, b.from + row * m * size, size, m);
      if (n > m) std::memcpy(to + 2 * m * size, a.from + (row * n + m) * size, size);
    }
  }
};

inline void run(std::vector<Frame>& frames) {
  std::vector<Unit> units;
  int64_t most = 0, each = 0;
  for (size_t i = 0; i < frames.size(); ++i) {
    const Frame& frame = frames[i];
    bool two = i + 1 < frames.size() && Unit::fits(frame, frames[i + 1]);
    units.push_back({&frame, two ? &frames[++i] : nullptr});
    if (two) frames[i].tile_rows = frame.tile_rows, frames[i].tiles_across = frame.tiles_across;
    most = std::max(most, frame.tiles());
    each += frame.tile_rows * frame.sizes[frame.along] * int64_t(frame.parts.size() * (1 + two));
  }
  auto some = [&](int64_t first, int64_t last) {
    Room room;
    for (int64_t i = first; i < last; ++i)
      for (const Unit& unit : units)
        if (i < unit.first->tiles()) unit.tile(i, room);
  };
  int64_t grain = std::max<int64_t>(1, at::internal::GRAIN_SIZE / each);
  if (most <= grain || at::get_num_threads() == 1 || at::in_parallel_region()) return some(0, most);
  // torch's own threads, which this library has not been compiled for: an iterator over bytes that nobody writes
  auto bytes = at::empty({most}, at::kByte);
  auto base = static_cast<char*>(bytes.data_ptr());
  auto elements = at::TensorIterator::nullary_op(bytes);
  elements.for_each(
      [&](char** places, const int64_t*, int64_t n, int64_t rows) {
        some(places[0] - base, places[0] - base + n * rows);
      },
      grain);
}

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

// The elements of one tensor, or of part of it, and what is combined into them: (tensor, part, ...), of parts (slices,
// number, operand, ...). `places`: a tensor that has the sum of the numbers of operands equal to the result.
inline std::optional<Frame> framed(
    int combination, bool fresh, const std::optional<at::Tensor>& places, const py::tuple& given) {
  std::vector<at::Tensor> outs{THPVariable_Unpack(given[0].ptr())};
  if (places) outs.push_back(*places);
  auto sizes = outs[0].sizes();
  size_t dims = sizes.size();
  if (dims + 2 > DIMS) return {};
  Frame frame{sizes.vec()};
  frame.fresh = fresh;
  frame.sizes.resize(std::max<size_t>(2, dims), 1);
  for (const at::Tensor& t : outs) {
    if (!plain(t) || t.is_conj() || t.sizes() != sizes) return {};
    Pass pass{nullptr, 0, {}, int64_t(t.element_size()), static_cast<char*>(t.mutable_data_ptr())};
    for (int64_t step : t.strides()) pass.steps.push_back(step * pass.size);
    pass.steps.resize(frame.sizes.size(), 0);
    frame.passes.push_back(std::move(pass));
  }
  std::vector<at::ScalarType> types;
  for (size_t n = 1; n < given.size(); ++n) {
    auto fields = py::reinterpret_borrow<py::tuple>(given[n]);
    Part part;
    part.data.fill(nullptr);
    part.first.fill(0);
    part.count.fill(1);
    int64_t step[DIMS];
    if (!unpacked(fields[0], sizes, part.first.data(), part.count.data(), step)) return {};
    if (std::any_of(step, step + dims, [](int64_t n) { return n != 1; })) return {};
    part.number = fields[1].cast<int64_t>();
    std::vector<at::ScalarType> own;
    for (size_t k = 0; k + 2 < fields.size(); ++k) {
      auto type = placed(fields[k + 2], part, k, dims);
      if (!type) return {};
      own.push_back(*type);
    }
    if (!types.empty() && own != types) return {};
    types = own;
    if (places) {
      const Pass& result = frame.passes[0];
      part.data[1] = result.data;
      part.steps[1].fill(0);
      for (size_t d = 0; d < dims; ++d) part.data[1] += part.first[d] * (part.steps[1][d] = result.steps[d]);
    }
    frame.parts.push_back(part);
  }
  for (size_t k = 0; k < outs.size(); ++k) {
    Pass& pass = frame.passes[k];
    if (k) types.push_back(outs[0].scalar_type());
    pass.loop = loop_of(k ? int(TESTS) : combination, outs[k].scalar_type(), types);
    if (!pass.loop) return {};
    pass.operands = types.size();
    for (size_t i = 0; i < types.size(); ++i) pass.sizes[i] = int64_t(c10::elementSize(types[i]));
  }
  if (outs[0].numel()) frame.joined(), frame.divided();
  return frame;
}

// Whether it is done.
inline bool combined(
    int combination, bool fresh, const std::optional<at::Tensor>& places, const py::tuple& classes) {
  std::vector<Frame> frames;
  for (auto given : classes) {
    auto frame = framed(combination, fresh, places, py::reinterpret_borrow<py::tuple>(given));
    if (!frame) return false;
    if (frame->tile_rows) frames.push_back(*std::move(frame));
  }
  if (frames.empty()) return true;
  py::gil_scoped_release released;
  run(frames);
  return true;
}

}  // namespace parts
}  // namespace tilec
