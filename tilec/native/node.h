// The node of a recorded call in torch's autograd graph. What is usual about a backward pass runs here; the rest is
// Python's, which is given what was kept.
#pragma once

#include <ATen/Context.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include "run.h"

namespace tilec {

namespace ag = torch::autograd;
namespace dynamo = torch::dynamo::autograd;

using NodePtr = decltype(std::declval<ag::Edge>().function);  // torch has changed what counts its references

// What torch is about in this thread: transforms, modes, traces and autocast show in its dispatch keys, and these do not.
inline bool carrying_tangents() { return ag::ForwardADLevel::try_get_by_idx(0) != nullptr; }

using Key = c10::SmallVector<uint64_t, 48>;

// What a thread's state says of a call.
inline void add_state(Key& key) {
  auto keys = c10::impl::tls_local_dispatch_key_set();
  key.append({keys.included_.raw_repr(), keys.excluded_.raw_repr(), uint64_t(c10::GradMode::is_enabled())});
}

// What a call depends on of a tensor, without sizes where these are `open`, and with strides on a CPU too where
// `strides`; false for tensors that have to be looked at.
inline bool add_tensor(Key& key, const Tensor& t, bool& cuda, bool open = false, bool strides = false) {
  if (t.is_nested() || t.layout() != at::kStrided || !t.has_storage() ||
      t.unsafeGetTensorImpl()->has_symbolic_sizes_strides())
    return false;
  at::Device device = t.device();
  uint64_t word = uint64_t(t.scalar_type()) | uint64_t(device.type()) << 8 | uint64_t(uint8_t(device.index())) << 16 |
      uint64_t(t.requires_grad()) << 24 | uint64_t(t.dim()) << 32;
  key.append({word, t.key_set().raw_repr()});
  if (!open) key.append(t.sizes().begin(), t.sizes().end());
  if (!open && (strides || device.is_cuda())) key.append(t.strides().begin(), t.strides().end());
  if (device.is_cuda()) {  // kernels are made for strides and alignments
    cuda = true;
    key.push_back(reinterpret_cast<uintptr_t>(t.const_data_ptr()) & 15);
  }
  return true;
}

inline void add_precision(Key& key) { key.push_back(uint64_t(at::globalContext().float32MatmulPrecision())); }

// What a backward pass depends on; false where it has to be looked at.
inline bool pass_key(Key& key, uint64_t needed, const Tensors& kept, const Tensors& cotangents) {
  if (c10::GradMode::is_enabled() || carrying_tangents()) return false;
  bool cuda = false;
  uint64_t there = 0;
  add_state(key);
  for (const Tensor& t : kept)
    if (!t.defined() || !add_tensor(key, t, cuda)) return false;
  for (size_t i = 0; i < cotangents.size(); ++i) {
    if (!cotangents[i].defined()) continue;
    there |= uint64_t(1) << i;
    if (!add_tensor(key, cotangents[i], cuda)) return false;
  }
  key.append({needed, there});
  if (cuda) add_precision(key);
  return true;
}

// A gradient: the run's result at a place, none at -1, or a view of what was kept or is a cotangent, with its axes there
// (-1: repeated).
struct Gradient {
  int place;
  bool view;
  std::vector<int> axes;
  std::vector<int64_t> shape;

  Tensor operator()(const Tensors& results, const Tensors& kept, const Tensors& cotangents) const {
    if (place < 0) return Tensor();
    if (!view) return results[place];
    const Tensor& t = size_t(place) < kept.size() ? kept[place] : cotangents[place - kept.size()];
    bool whole = axes.size() == size_t(t.dim());
    for (size_t i = 0; i < axes.size(); ++i) whole = whole && axes[i] == int(i);
    if (whole) return t;
    std::vector<int64_t> strides;
    bool placed = false, repeats = false;
    for (size_t i = 0; i < axes.size(); ++i) {
      strides.push_back(axes[i] < 0 ? 0 : t.stride(axes[i]));
      placed = placed || axes[i] < 0;
      repeats = repeats || (axes[i] < 0 && shape[i] != 1);
    }
    Tensor found = t.as_strided(shape, strides, t.storage_offset());
    return placed && !repeats ? found.clone() : found;  // as torch's gradient of `X[0]` is, which may be added to
  }
};

// A backward pass of one kind.
struct Pass {
  Key key;
  std::shared_ptr<Run> run;
  std::vector<int> sources;  // places in what was kept, the cotangents and what stands in for others
  Tensors beside;            // these
  std::vector<Gradient> gradients;  // for each input

  // Torch adds in place to a gradient that nothing else refers to, and asks the tensor, not its memory: of views of the
  // same memory all but one become copies.
  void part(ag::variable_list& found) const {
    for (size_t i = 1; i < found.size(); ++i) {
      if (!gradients[i].view || !found[i].is_non_overlapping_and_dense()) continue;
      for (size_t j = 0; j < i; ++j) {
        if (!gradients[j].view || found[i].is_same(found[j]) || !found[i].is_alias_of(found[j])) continue;
        found[i] = found[i].clone();
        break;
      }
    }
  }
};

// A recorded call of tensors of one kind, and what is known of its backward passes. `python` has `pulled_back`.
struct Recorded {
  Ref python;
  size_t inputs, outputs;
  std::vector<int> keep;       // places in outputs and inputs
  std::vector<bool> constant;  // of the outputs, those without a derivative
  std::mutex mutex;
  std::vector<std::shared_ptr<const Pass>> passes;

  std::shared_ptr<const Pass> find(const Key& key) {
    std::lock_guard<std::mutex> lock(mutex);
    for (const auto& pass : passes)
      if (pass->key == key) return pass;
    return nullptr;
  }
};

struct TileCallBackward final : ag::Node {
  std::shared_ptr<Recorded> recorded;
  std::vector<ag::SavedVariable> saved;
  std::mutex saving;

  std::string name() const override { return "TileCallBackward"; }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(saving);
    for (auto& s : saved) s.reset_data();
  }

  ag::variable_list apply(ag::variable_list&& cotangents) override {
    Tensors kept;
    {
      std::lock_guard<std::mutex> lock(saving);
      for (auto& s : saved) kept.push_back(s.unpack(getptr()));
    }
    uint64_t bits = needed();
    Key key;
    bool usual = pass_key(key, bits, kept, cotangents);
    auto pass = usual ? recorded->find(key) : nullptr;
    if (!pass) {
      auto found = in_python(recorded, kept, cotangents, bits, usual);
      if (found) return *found;
      pass = recorded->find(key);
      TORCH_CHECK(pass, "a backward pass was not added");
    }
    Tensors given;
    given.reserve(pass->sources.size());
    for (size_t place : pass->sources) {
      size_t beyond = kept.size() + cotangents.size();
      const auto& tensor = place < kept.size() ? kept[place] : place < beyond ? cotangents[place - kept.size()]
                                                                              : pass->beside[place - beyond];
      given.push_back(tensor);
    }
    Tensors results;
    try {
      if (pass->run) results = (*pass->run)(given);
    } catch (const c10::OutOfMemoryError&) {  // Python says what it was for
      return *in_python(recorded, kept, cotangents, bits, false);
    }
    ag::variable_list gradients(recorded->inputs);
    for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = pass->gradients[i](results, kept, cotangents);
    pass->part(gradients);
    return gradients;
  }

#if __has_include(<torch/csrc/autograd/node.h>)
  void release_resources() override {
    Node::release_resources();
    saved.clear();
    recorded.reset();
  }
#endif

  // torch's compiled autograd: what is saved becomes inputs of its graph, and Python's backward pass a node there.
  void compiled_args(dynamo::CompiledNodeArgs& args) const override {
    args.collect(reinterpret_cast<uint64_t>(recorded.get()));
    for (size_t i = 0; i < saved.size(); ++i) args.collect(saved[i], size_t(recorded->keep[i]) < recorded->outputs);
  }

  ag::variable_list apply_with_saved(const ag::variable_list& cotangents, dynamo::SwapSavedVariables& swap) override {
    for (auto& s : saved) swap.before(s);
    dynamo::PackedArgs packed;
    for (auto& s : saved) packed.pack(s.unpack(getptr()));
    auto arguments = std::move(packed).vec();
    std::vector<at::TypePtr> schema(arguments.size(), at::TensorType::get());
    auto backward = [recorded = recorded, needed = needed()](
                        const ag::variable_list& inputs, const std::vector<c10::IValue>& given) {
      Tensors kept;
      for (const auto& value : given) kept.push_back(value.toTensor());
      return *in_python(recorded, kept, inputs, needed, false);
    };
    auto metadata = dynamo::IValuePacker<std::vector<std::optional<ag::InputMetadata>>>::pack(
        dynamo::get_input_metadata(next_edges()));
    const auto& compiler = dynamo::getPyCompilerInterface();
    auto function = compiler->bind_function(swap.get_py_compiler(), name(), backward, schema, true, true);
    auto gradients = compiler->call_function(
        swap.get_py_compiler(), "apply_functional", function, cotangents, arguments, metadata);
    for (auto& s : saved) swap.after(s);
    return gradients;
  }

 private:
  uint64_t needed() const {
    uint64_t bits = 0;
    for (size_t i = 0; i < recorded->inputs; ++i) bits |= uint64_t(task_should_compute_output(i)) << i;
    return bits;
  }

  // The gradients; nothing where Python has added the pass instead, which it may if that is `usual`.
  static std::optional<ag::variable_list> in_python(
      const std::shared_ptr<Recorded>& recorded, const Tensors& kept, const Tensors& cotangents, uint64_t needed,
      bool usual) {
    py::gil_scoped_acquire gil;
    auto tuple = [](const Tensors& tensors) {
      py::tuple made(tensors.size());
      for (size_t i = 0; i < tensors.size(); ++i) made[i] = checked(wrapped(tensors[i]));
      return made;
    };
    py::tuple wanted(recorded->inputs);
    for (size_t i = 0; i < recorded->inputs; ++i) wanted[i] = py::bool_(needed >> i & 1);
    try {
      py::object native = usual ? py::cast(recorded) : py::none();
      py::object found =
          py::handle(recorded->python.get()).attr("pulled_back")(native, wanted, tuple(kept), tuple(cotangents));
      if (found.is_none()) return std::nullopt;
      return unwrapped(found.ptr());
    } catch (py::error_already_set& error) {
      error.restore();
      python_error raised;
      raised.persist();
      throw raised;
    }
  }
};

inline NodePtr new_node() {
#if __has_include(<torch/csrc/autograd/node.h>)
  return c10::make_intrusive<TileCallBackward>();
#else
  return NodePtr(new TileCallBackward(), ag::deleteNode);
#endif
}

// Run a recorded call: its outputs as torch's autograd is to see them.
inline Tensors record(const std::shared_ptr<Recorded>& recorded, const Run& run, const Tensors& inputs) {
  Tensors outputs;
  {
    c10::AutoGradMode off(false);
    outputs = run(inputs);
  }
  NodePtr pointer = new_node();
  auto& node = static_cast<TileCallBackward&>(*pointer);
  node.recorded = recorded;
  node.set_next_edges(ag::collect_next_edges(inputs));
  for (size_t i = 0; i < outputs.size(); ++i) {
    Tensor& t = outputs[i];
    if (!t.defined() || recorded->constant[i] || !ag::isDifferentiableType(t.scalar_type())) {
      node.add_input_metadata(ag::Node::undefined_input());
      continue;
    }
    if (t.is_view() || t.requires_grad()) t = t.variable_data();  // torch takes no operation in place on a view
    ag::impl::set_gradient_edge(t, {pointer, node.add_input_metadata(t)});
  }
  node.saved.reserve(recorded->keep.size());
  for (size_t place : recorded->keep) {
    bool own = place < outputs.size();
    node.saved.emplace_back(own ? outputs[place] : inputs[place - outputs.size()], own);
  }
  return outputs;
}

}  // namespace tilec
