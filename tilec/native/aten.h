// What a step calls of torch's operators, as it was seen to: on tensors of its own and on views of them.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided_native.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tilec {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// A tensor among those that are there, or a view of it: `offset` elements after its first one.
struct StridedView {
  size_t place;
  bool whole;
  std::vector<int64_t> sizes, strides;
  int64_t offset;

  explicit StridedView(const py::tuple& given) : place(given[0].cast<size_t>()), whole(given[1].is_none()), offset(0) {
    if (whole) return;
    sizes = given[1].cast<std::vector<int64_t>>();
    strides = given[2].cast<std::vector<int64_t>>();
    offset = given[3].cast<int64_t>();
  }

  Tensor operator()(const Tensors& there) const {
    const Tensor& t = there[place];
    return whole ? t : at::native::as_strided_tensorimpl(t, sizes, strides, t.storage_offset() + offset);
  }
};

// One operator: constants as they were, tensors in their places; of each result the strides that it had.
class AtenCall {
 public:
  AtenCall(const std::string& name, const std::string& overload, const py::list& arguments, const py::list& results)
      : operator_(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str())) {
    for (auto item : arguments) {
      stack_.push_back(constant(item));
      if (py::isinstance<py::tuple>(item)) tensors_.emplace_back(stack_.size() - 1, item.cast<py::tuple>());
    }
    for (auto item : results) strides_.push_back(item.cast<std::optional<std::vector<int64_t>>>());
  }

  // Adds the results; false where one is not as it was.
  bool operator()(Tensors& there) const {
    auto stack = stack_;
    for (const auto& [place, tensor] : tensors_) stack[place] = tensor(there);
    operator_.callBoxed(&stack);
    for (size_t i = 0; i < strides_.size(); ++i) {
      Tensor t = stack[i].isTensor() ? stack[i].toTensor() : Tensor();
      if (t.defined() != strides_[i].has_value() || (t.defined() && t.strides() != *strides_[i])) return false;
      there.push_back(std::move(t));
    }
    return true;
  }

 private:
  // Numbers, lists of them, what torch has constants for, and None; a tuple is a tensor's place.
  static c10::IValue constant(py::handle item) {
    if (item.is_none() || py::isinstance<py::tuple>(item)) return {};
    if (py::isinstance<py::bool_>(item)) return item.cast<bool>();
    if (py::isinstance<py::int_>(item)) return item.cast<int64_t>();
    if (py::isinstance<py::float_>(item)) return item.cast<double>();
    if (THPDtype_Check(item.ptr())) return int64_t(reinterpret_cast<THPDtype*>(item.ptr())->scalar_type);
    if (THPDevice_Check(item.ptr())) return reinterpret_cast<THPDevice*>(item.ptr())->device;
    if (THPMemoryFormat_Check(item.ptr()))
      return int64_t(reinterpret_cast<THPMemoryFormat*>(item.ptr())->memory_format);
    auto list = item.cast<py::list>();
    if (!py::len(list) || !py::isinstance<py::bool_>(list[0])) return item.cast<std::vector<int64_t>>();
    c10::List<bool> flags;
    for (auto flag : list) flags.push_back(flag.cast<bool>());
    return flags;
  }

  c10::OperatorHandle operator_;
  std::vector<c10::IValue> stack_;
  std::vector<std::pair<size_t, StridedView>> tensors_;
  std::vector<std::optional<std::vector<int64_t>>> strides_;  // none: no tensor
};

// cuDNN in the precision of matrix products while this lives, as `own_precision` of the torch backend's runtime has it.
// What torch keeps for all threads is set by the first of several at a time and set back by the last.
class OwnPrecision {
 public:
  OwnPrecision() {
    auto& context = at::globalContext();
    bool wanted = context.float32MatmulPrecision() != at::Float32MatmulPrecision::HIGHEST;
    std::lock_guard<std::mutex> lock(mutex_);
    if (!inside_) before_ = context.allowTF32CuDNN();
    if (context.allowTF32CuDNN() != wanted) context.setAllowTF32CuDNN(wanted);
    ++inside_;
  }
  OwnPrecision(const OwnPrecision&) = delete;
  ~OwnPrecision() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!--inside_ && at::globalContext().allowTF32CuDNN() != before_) at::globalContext().setAllowTF32CuDNN(before_);
  }

 private:
  static inline std::mutex mutex_;
  static inline int inside_ = 0;
  static inline bool before_ = false;
};

// All of a step's, of the tensors that it reads; nothing where one gave what it did not before.
struct AtenCalls {
  std::vector<AtenCall> calls;
  std::vector<StridedView> results;
  bool own_precision;

  // `calls`: (name, overload, arguments, strides of results) each; `results`: the step's; `own_precision`: of cuDNN.
  explicit AtenCalls(const py::object& given) : own_precision(given.attr("own_precision").cast<bool>()) {
    for (auto call : given.attr("calls")) {
      auto [name, overload, arguments, strides] =
          call.cast<std::tuple<std::string, std::string, py::list, py::list>>();
      calls.emplace_back(name, overload, arguments, strides);
    }
    for (auto result : given.attr("results")) results.emplace_back(result.cast<py::tuple>());
  }

  Tensors operator()(Tensors there) const {
    at::AutoDispatchBelowADInplaceOrView plain;
    std::optional<OwnPrecision> precision;
    if (own_precision) precision.emplace();
    for (const AtenCall& call : calls)
      if (!call(there)) return {};
    Tensors found;
    for (const StridedView& result : results) found.push_back(result(there));
    return found;
  }
};

}  // namespace tilec
