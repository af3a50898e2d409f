// What a call runs: a function of Python's, or a plan of allocations and launches that needs no Python.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "aten.h"

namespace tilec {

// A thread that asks for the interpreter while it ends is ended where it stands, which a destructor does not survive.
// Once `leaving`, threads give their references up without a word; those that `ask` are waited for before. torch's own
// threads give up tensors that Python knows too, an instant after the backward pass that they end: `instant` is theirs.
struct Interpreter {
  static inline std::atomic<bool> leaving{false};
  static inline std::atomic<int> asking{0};
  static constexpr int instant = 5, longest = 2000;  // milliseconds

  // At the beginning of the end, in the thread that holds the interpreter.
  static void leave() {
    leaving = true;
    py::gil_scoped_release release;
    for (int waited = 0; waited < instant || (asking && waited < longest); ++waited)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

// A reference that may be given up in any thread.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* object) : object_(object) { Py_XINCREF(object_); }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (!object_ || !Py_IsInitialized()) return;
    if (PyGILState_Check()) {
      Py_DECREF(object_);
      return;
    }
    ++Interpreter::asking;
    if (!Interpreter::leaving) {
      py::gil_scoped_acquire gil;
      Py_DECREF(object_);
    }
    --Interpreter::asking;
  }
  PyObject* get() const { return object_; }

 private:
  PyObject* object_ = nullptr;
};

inline PyObject* wrapped(const Tensor& t) {
  if (t.defined()) return THPVariable_Wrap(t);
  Py_RETURN_NONE;
}

inline py::object checked(PyObject* result) {
  if (!result) throw python_error();
  return py::reinterpret_steal<py::object>(result);
}

inline Tensors unwrapped(PyObject* sequence) {
  Tensors found;
  Py_ssize_t count = PyTuple_GET_SIZE(sequence);
  found.reserve(count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PyTuple_GET_ITEM(sequence, i);
    found.push_back(item == Py_None ? Tensor() : THPVariable_Unpack(item));
  }
  return found;
}

struct Run {
  virtual ~Run() = default;
  // The results for these tensors; with or without Python's lock.
  virtual Tensors operator()(const Tensors& inputs) const = 0;
  // The function itself, where it is Python's.
  virtual PyObject* function() const { return nullptr; }
};

class PythonRun final : public Run {
 public:
  explicit PythonRun(PyObject* function) : function_(function) {}
  PyObject* function() const override { return function_.get(); }

  Tensors operator()(const Tensors& inputs) const override {
    py::gil_scoped_acquire gil;
    std::vector<py::object> held;
    std::vector<PyObject*> given;
    for (const Tensor& t : inputs) {
      held.push_back(checked(wrapped(t)));
      given.push_back(held.back().ptr());
    }
    auto results = checked(PyObject_Vectorcall(function_.get(), given.data(), given.size(), nullptr));
    TORCH_CHECK_TYPE(PyTuple_CheckExact(results.ptr()), "a function of tensors gives a tuple");
    return unwrapped(results.ptr());
  }

 private:
  Ref function_;
};

// The CUDA driver, found when it is first asked for, so that this builds without it.
struct Driver {
  using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                         void**);
  using Cooperative = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                              void**);
  Launch launch = nullptr;
  Cooperative cooperative = nullptr;
  int (*current)(void**) = nullptr;
  int (*make_current)(void*) = nullptr;
  int (*context_of)(void**, int) = nullptr;  // of a device, as torch uses it
  int (*capturing)(void*, int*) = nullptr;
  int (*name_of)(int, const char**) = nullptr;
  int (*replace_address)(void*, void*) = nullptr;  // of a tensor map; older drivers have none

  static const Driver& get() {
    static const Driver driver;
    return driver;
  }
  static std::string path;  // before it is asked for the first time

 private:
  Driver() {
    void* library = dlopen(path.c_str(), RTLD_NOW);
    TORCH_CHECK(library, "there is no CUDA driver");
    auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      TORCH_CHECK(function, "the CUDA driver has no ", name);
    };
    find(launch, "cuLaunchKernel");
    find(cooperative, "cuLaunchCooperativeKernel");
    find(current, "cuCtxGetCurrent");
    find(make_current, "cuCtxSetCurrent");
    find(context_of, "cuDevicePrimaryCtxRetain");
    find(capturing, "cuStreamIsCapturing");
    find(name_of, "cuGetErrorName");
    replace_address = reinterpret_cast<int (*)(void*, void*)>(dlsym(library, "cuTensorMapReplaceAddress"));
  }
};

inline std::string Driver::path = "libcuda.so.1";

constexpr size_t MOST_MAPS = 8;  // tensor maps of a kernel

struct alignas(64) TensorMap {
  char bytes[128];
};

// The bits of a number, or where they stand among those that a plan has of its own.
struct StepNumber {
  int64_t value = 0;
  bool open = false;
  int64_t operator()(const std::vector<int64_t>& numbers) const { return open ? numbers[value] : value; }
};

// One argument of a kernel: an address in a tensor or in the workspace, a number, or a tensor map.
struct Argument {
  enum Kind { TENSOR, WORKSPACE, NUMBER, MAP } kind;
  StepNumber value;        // the tensor's place, the offset in the workspace, or the number
  int64_t offset = 0;    // of a map: bytes from the tensor's first element
  TensorMap map{};       // over another address
};

// A function of a dictionary of tensors, and of the stream; what it calls of torch's operators, or the tensor that it
// always makes, once it says so.
struct Function {
  explicit Function(PyObject* function) : function(function) {}
  ~Function() {
    delete calls.load();
    delete constant.load();
  }
  Ref function;
  std::atomic<const AtenCalls*> calls{nullptr};
  std::atomic<const Tensor*> constant{nullptr};

  // With Python's lock.
  void look() {
    if (calls.load() || constant.load()) return;
    py::object found = py::getattr(py::handle(function.get()), "calls", py::none());
    if (!found.is_none()) calls = new AtenCalls(found);
    py::object made = py::getattr(py::handle(function.get()), "constant", py::none());
    if (!made.is_none()) constant = new Tensor(THPVariable_Unpack(made.ptr()));
  }
};

struct Step {
  enum Kind { EMPTY, LAUNCH, PYTHON, FREE } kind;
  // EMPTY
  int slot = 0;
  std::vector<StepNumber> sizes{};
  at::ScalarType dtype = at::kFloat;
  // LAUNCH
  void* kernel = nullptr;
  StepNumber grid[3] = {};
  unsigned threads = 0, shared = 0;
  bool cooperative = false;
  std::vector<Argument> arguments{};
  // PYTHON
  size_t function = 0;
  std::vector<std::pair<std::string, int>> reads{}, writes{};
  // FREE
  std::vector<int> slots{};
};

// What allocates on a device. torch's operator is looked up by the dispatcher each time, which takes as long again.
class Allocations {
 public:
  explicit Allocations(at::Device device)
      : options_(at::TensorOptions().device(device)),
        keys_(c10::computeDispatchKey(at::kByte, at::kStrided, device)),
        allocator_(at::empty({0}, options_.dtype(at::kByte)).storage().allocator()) {}

  Tensor operator()(at::IntArrayRef sizes, at::ScalarType dtype) const {
    auto& context = at::globalContext();  // which may want what is not written to be NaN
    if (!allocator_ || context.deterministicAlgorithms()) return at::empty(sizes, options_.dtype(dtype));
    return Tensor(at::detail::empty_generic(sizes, allocator_, keys_, dtype, std::nullopt));
  }

 private:
  at::TensorOptions options_;
  c10::DispatchKeySet keys_;
  c10::Allocator* allocator_;
};

// What plans for other numbers have in common.
struct Steps {
  at::Device device;
  Allocations allocated;
  int slots;
  std::vector<Step> steps;
  std::vector<int> outputs;
  void* context = nullptr;

  Steps(at::Device device, int slots, std::vector<Step> given, std::vector<int> outputs)
      : device(device), allocated(device), slots(slots), steps(std::move(given)), outputs(std::move(outputs)) {
    for (const Step& step : steps) {
      if (step.kind == Step::LAUNCH && !context) context = context_here();
      size_t maps = 0;
      for (const Argument& a : step.arguments) maps += a.kind == Argument::MAP;
      TORCH_CHECK(!maps || (maps <= MOST_MAPS && Driver::get().replace_address), "tensor maps that Python launches");
    }
  }

 private:
  // The thread's, or in one that has used no device yet, the device's.
  void* context_here() const {
    void* found = nullptr;
    Driver::get().current(&found);
    if (!found) Driver::get().context_of(&found, device.index() < 0 ? 0 : device.index());
    return found;
  }
};

class Plan final : public Run {
 public:
  using Functions = std::vector<std::shared_ptr<Function>>;

  Plan(std::shared_ptr<const Steps> steps, int64_t workspace, std::vector<int64_t> numbers, Functions functions)
      : steps_(std::move(steps)),
        workspace_(workspace),
        numbers_(std::move(numbers)),
        functions_(std::move(functions)) {}

  // The same steps with other numbers and, where they are not None, functions of its own.
  std::shared_ptr<Run> filled(int64_t workspace, const py::tuple& numbers, const py::list& functions) const {
    std::vector<int64_t> bits;
    bits.reserve(numbers.size());
    for (auto number : numbers) bits.push_back(bits_of(number));
    Functions own = functions_;
    for (size_t i = 0; i < functions.size(); ++i)
      if (py::object function = functions[i]; !function.is_none()) own[i] = std::make_shared<Function>(function.ptr());
    return std::make_shared<Plan>(steps_, workspace, std::move(bits), std::move(own));
  }

  static int64_t bits_of(py::handle number) {
    if (!PyFloat_Check(number.ptr())) return number.cast<int64_t>();
    float value = number.cast<float>();
    int64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
  }

  // How many steps are left to Python.
  size_t in_python() const {
    return std::count_if(
        functions_.begin(), functions_.end(), [](const auto& f) { return !f->calls.load() && !f->constant.load(); });
  }

  Tensors operator()(const Tensors& inputs) const override {
    at::Device device = steps_->device;
    c10::DeviceGuard guard(device);
    c10::Stream current = c10::impl::getDeviceGuardImpl(device.type())->getStream(device);
    void* stream = device.is_cuda() ? current.native_handle() : nullptr;
    Tensors tensors(steps_->slots);
    std::copy(inputs.begin(), inputs.end(), tensors.begin());
    Tensor workspace;
    char* base = nullptr;
    if (workspace_) {
      workspace = steps_->allocated({workspace_}, at::kByte);
      base = static_cast<char*>(workspace.data_ptr());
    }
    for (const Step& step : steps_->steps) switch (step.kind) {
        case Step::EMPTY:
          tensors[step.slot] = steps_->allocated(sizes_of(step), step.dtype);
          break;
        case Step::LAUNCH:
          launch(step, tensors, base, stream);
          break;
        case Step::PYTHON:
          if (!constant(step, tensors, stream) && !aten(step, tensors)) python(step, tensors, stream);
          break;
        case Step::FREE:
          for (int slot : step.slots) tensors[slot].reset();
      }
    Tensors results;
    results.reserve(steps_->outputs.size());
    for (int slot : steps_->outputs) results.push_back(tensors[slot]);
    return results;
  }

 private:
  c10::SmallVector<int64_t, 8> sizes_of(const Step& step) const {
    c10::SmallVector<int64_t, 8> found;
    for (const StepNumber& n : step.sizes) found.push_back(n(numbers_));
    return found;
  }

  void launch(const Step& step, const Tensors& tensors, char* base, void* stream) const {
    unsigned g[3];
    for (int axis = 0; axis < 3; ++axis) g[axis] = step.grid[axis](numbers_);
    if (!g[0] || !g[1] || !g[2]) return;
    const Driver& driver = Driver::get();
    auto in_context = [&](auto call) {
      int code = call();
      if (code != 201) return code;
      driver.make_current(steps_->context);  // a thread that has used no device yet has none
      return call();
    };
    size_t count = step.arguments.size();
    c10::SmallVector<int64_t, 32> values(count);
    c10::SmallVector<void*, 32> places(count + 1);
    TensorMap maps[MOST_MAPS];
    size_t used = 0;
    for (size_t i = 0; i < count; ++i) {
      const Argument& a = step.arguments[i];
      if (a.kind == Argument::MAP) {
        places[i] = &(maps[used] = a.map);
        auto* address = static_cast<char*>(tensors[a.value.value].data_ptr()) + a.offset;
        TensorMap* map = &maps[used++];
        int code = in_context([&] { return driver.replace_address(map, address); });
        TORCH_CHECK(!code, "a tensor map takes no address: ", code);
        continue;
      }
      values[i] = a.kind == Argument::NUMBER      ? a.value(numbers_)
                  : a.kind == Argument::WORKSPACE ? reinterpret_cast<int64_t>(base) + a.value(numbers_)
                                                  : reinterpret_cast<int64_t>(tensors[a.value.value].data_ptr());
      places[i] = &values[i];
    }
    int code = in_context([&] {
      return step.cooperative
          ? driver.cooperative(step.kernel, g[0], g[1], g[2], step.threads, 1, 1, step.shared, stream, places.data())
          : driver.launch(step.kernel, g[0], g[1], g[2], step.threads, 1, 1, step.shared, stream, places.data(),
                          nullptr);
    });
    if (code) {
      const char* name = "an unknown error";
      driver.name_of(code, &name);
      TORCH_CHECK(false, "a kernel was not launched: ", name);
    }
  }

  // Where a call is captured, Python keeps what its graph reads.
  bool constant(const Step& step, Tensors& tensors, void* stream) const {
    const Tensor* made = functions_[step.function]->constant;
    int capturing = 0;
    if (!made || (made->is_cuda() && (Driver::get().capturing(stream, &capturing) || capturing))) return false;
    tensors[step.writes[0].second] = *made;
    return true;
  }

  bool aten(const Step& step, Tensors& tensors) const {
    const AtenCalls* calls = functions_[step.function]->calls;
    if (!calls) return false;
    Tensors given;
    given.reserve(step.reads.size() + calls->calls.size());
    for (const auto& [name, slot] : step.reads) given.push_back(tensors[slot]);
    Tensors made = (*calls)(std::move(given));
    for (size_t i = 0; i < made.size(); ++i) tensors[step.writes[i].second] = std::move(made[i]);
    return !made.empty();
  }

  void python(const Step& step, Tensors& tensors, void* stream) const {
    py::gil_scoped_acquire gil;
    py::dict given;
    for (const auto& [name, slot] : step.reads) given[name.c_str()] = checked(wrapped(tensors[slot]));
    Function& function = *functions_[step.function];
    py::handle(function.function.get())(given, reinterpret_cast<uintptr_t>(stream));
    function.look();
    for (const auto& [name, slot] : step.writes) tensors[slot] = THPVariable_Unpack(given[name.c_str()].ptr());
  }

  std::shared_ptr<const Steps> steps_;
  int64_t workspace_;
  std::vector<int64_t> numbers_;
  Functions functions_;
};

}  // namespace tilec
