// What a step calls of torch's operators, as it was seen to: on tensors of its own and on views of them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>

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
    return whole ? t : at::as_strided(t, sizes, strides, t.storage_offset() + offset);
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

// All of a step's, of the tensors that it reads; nothing where one gave what it did not before.
struct AtenCalls {
  std::vector<AtenCall> calls;
  std::vector<StridedView> results;

  // `calls`: (name, overload, arguments, strides of results) each; `results`: the step's.
  explicit AtenCalls(const py::object& given) {
    for (auto call : given.attr("calls")) {
      auto [name, overload, arguments, strides] =
          call.cast<std::tuple<std::string, std::string, py::list, py::list>>();
      calls.emplace_back(name, overload, arguments, strides);
    }
    for (auto result : given.attr("results")) results.emplace_back(result.cast<py::tuple>());
  }

  Tensors operator()(Tensors there) const {
    at::AutoDispatchBelowADInplaceOrView plain;
    for (const AtenCall& call : calls)
      if (!call(there)) return {};
    Tensors found;
    for (const StridedView& result : results) found.push_back(result(there));
    return found;
  }
};

}  // namespace tilec
