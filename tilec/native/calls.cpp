// Calls like one before: from what they are given straight to what runs, and torch's node where they are recorded.

#include <ATen/ops/full.h>

#include <optional>
#include <unordered_map>

#include "node.h"
#include "parts.h"
#include "scan.h"
#include "scatter.h"
#include "selection.h"

namespace tilec {
namespace {

struct Hash {
  size_t operator()(const Key& key) const {
    uint64_t h = 1469598103934665603u;
    for (uint64_t word : key) h = (h ^ word) * 1099511628211u, h ^= h >> 29;
    return h;
  }
};

constexpr size_t MOST = 64;  // tensors of a call, whose bits are one number
constexpr uint64_t NUMBERS = uint64_t(1) << 62;

// What a call depends on, without sizes where these are `open`, and on strides where it would not without `strides`;
// false where it has to be looked at.
bool key_of(PyObject* inputs, Key& key, bool open, bool strides) {
  if (carrying_tangents() || PyTuple_GET_SIZE(inputs) > Py_ssize_t(MOST)) return false;
  add_state(key);
  bool cuda = false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) {
    PyObject* item = PyTuple_GET_ITEM(inputs, i);
    if (THPVariable_CheckExact(item)) {
      if (!add_tensor(key, THPVariable_Unpack(item), cuda, open, strides)) return false;
    } else if (PyFloat_CheckExact(item)) {
      key.push_back(NUMBERS | 1);
    } else if (PyLong_CheckExact(item)) {
      key.push_back(NUMBERS | 2);
    } else if (PyBool_Check(item)) {
      key.push_back(NUMBERS | 3);
    } else {
      return false;
    }
  }
  if (cuda) add_precision(key);
  return true;
}

// The tensor of a Python number. One that comes twice in a row on a stream is Python's from then on, which keeps what it
// is converted to.
class Number {
 public:
  Number(int place, PyObject* make, at::Device device) : place(place), make_(make), device_(device) {}
  const int place;

  Tensor operator()(PyObject* number) {
    bool floating = PyFloat_CheckExact(number), known = true;
    double value = floating ? PyFloat_AS_DOUBLE(number) : 0;
    int64_t bits = 0;
    if (floating) {
      std::memcpy(&bits, &value, sizeof bits);
    } else {
      int overflow = 0;
      bits = PyLong_AsLongLongAndOverflow(number, &overflow);
      known = !overflow;
    }
    void* stream = nullptr;
    if (device_.is_cuda()) {
      stream = c10::impl::getDeviceGuardImpl(device_.type())->getStream(device_).native_handle();
      int capturing = 0;
      known = known && !Driver::get().capturing(stream, &capturing) && !capturing;
    }
    if (!known) return in_python(number);
    bool again = last_.defined() && bits == bits_ && stream == stream_;
    if (again && kept_) return last_;
    auto options = at::TensorOptions().device(device_);
    Tensor made = again      ? in_python(number)
                  : floating ? at::full({}, value, options.dtype(at::kDouble))
                             : at::full({}, bits, options.dtype(PyBool_Check(number) ? at::kBool : at::kLong));
    Tensor before = std::exchange(last_, made);  // only now: Python may have let another thread in, with another number
    bits_ = bits, stream_ = stream, kept_ = again;
    return made;
  }

 private:
  Tensor in_python(PyObject* number) const {
    auto found = checked(PyObject_CallOneArg(make_.get(), number));
    return THPVariable_Unpack(found.ptr());
  }

  Ref make_;
  at::Device device_;
  Tensor last_;
  int64_t bits_ = 0;
  void* stream_ = nullptr;
  bool kept_ = false;
};

// The axes of a tensor as they lie in memory, none for a row-major one.
using AxisOrder = std::vector<int64_t>;

struct Entry {
  std::shared_ptr<Run> run;
  std::shared_ptr<Recorded> recorded;  // null: nothing is recorded
  size_t outputs;                      // those that the caller sees
  std::vector<Number> numbers;
  std::optional<std::vector<AxisOrder>> own;  // an operator's: outputs that share no memory, and how they lie
};

// A new tensor of the same elements that lies so.
Tensor copied(const Tensor& t, const AxisOrder& order) {
  if (order.empty()) return at::empty(t.sizes(), t.options()).copy_(t);
  std::vector<int64_t> sizes, back(order.size());
  for (size_t i = 0; i < order.size(); ++i) sizes.push_back(t.size(order[i])), back[order[i]] = int64_t(i);
  return at::empty(sizes, t.options()).permute(back).copy_(t);
}

// Have the results share no memory with the inputs or each other, and lie as they are said to.
void make_own(Tensors& results, const Tensors& inputs, const std::vector<AxisOrder>& orders) {
  c10::SmallVector<const void*, 16> memory;
  for (const Tensor& t : inputs) memory.push_back(t.storage().data());
  for (size_t i = 0; i < results.size(); ++i) {
    Tensor& t = results[i];
    bool own = t.storage().nbytes() == size_t(t.numel()) * t.element_size() &&
        std::find(memory.begin(), memory.end(), t.storage().data()) == memory.end();
    if (!own || !(orders[i].empty() ? t : t.permute(orders[i])).is_contiguous()) t = copied(t, orders[i]);
    memory.push_back(t.storage().data());
  }
}

struct Calls {
  PyObject_HEAD
  vectorcallfunc call;
  std::unordered_map<Key, std::shared_ptr<Entry>, Hash>* entries;
  std::unordered_map<Key, py::object, Hash>* classes;  // of (calls, inputs): adds what differs in sizes alone
  bool strides;                                        // whether strides tell calls apart on every device
};

// Add a call of a known class; false where Python has to look at it.
bool added(PyObject* self, PyObject* inputs) {
  Key key;
  auto& classes = *reinterpret_cast<Calls*>(self)->classes;
  if (classes.empty() || !key_of(inputs, key, true, reinterpret_cast<Calls*>(self)->strides)) return false;
  auto known = classes.find(key);
  if (known == classes.end()) return false;
  py::object add = known->second;
  return checked(PyObject_CallFunctionObjArgs(add.ptr(), self, inputs, nullptr)).ptr() == Py_True;
}

PyObject* given_back(Tensors& results, size_t count) {
  if (count == 1) return wrapped(results[0]);
  PyObject* tuple = PyTuple_New(count);
  for (size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(tuple, i, wrapped(results[i]));
  return tuple;
}

// The outputs of a call of the operator, as a list.
PyObject* run_own(const Entry& entry, PyObject* inputs) {
  at::AutoDispatchBelowADInplaceOrView plain;
  Tensors tensors = unwrapped(inputs), results = (*entry.run)(tensors);
  make_own(results, tensors, *entry.own);
  PyObject* list = PyList_New(results.size());
  for (size_t i = 0; i < results.size(); ++i) PyList_SET_ITEM(list, i, wrapped(results[i]));
  return list;
}

PyObject* run_entry(Entry& entry, PyObject* inputs) {
  if (entry.own) return run_own(entry, inputs);
  PyObject* function = entry.run->function();
  Py_ssize_t count = PyTuple_GET_SIZE(inputs);
  if (function && !entry.recorded) {  // no tensor needs to be looked at again
    c10::SmallVector<PyObject*, 8> given(count);
    c10::SmallVector<py::object, 2> made;
    for (Py_ssize_t i = 0; i < count; ++i) given[i] = PyTuple_GET_ITEM(inputs, i);
    for (auto& number : entry.numbers) {
      made.push_back(checked(wrapped(number(given[number.place]))));
      given[number.place] = made.back().ptr();
    }
    auto results = checked(PyObject_Vectorcall(function, given.data(), count, nullptr));
    if (PyTuple_GET_SIZE(results.ptr()) != 1) return results.release().ptr();
    return Py_NewRef(PyTuple_GET_ITEM(results.ptr(), 0));
  }
  Tensors tensors(count);
  for (auto& number : entry.numbers) tensors[number.place] = number(PyTuple_GET_ITEM(inputs, number.place));
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!tensors[i].defined()) tensors[i] = THPVariable_Unpack(PyTuple_GET_ITEM(inputs, i));
  Tensors results = entry.recorded ? record(entry.recorded, *entry.run, tensors) : (*entry.run)(tensors);
  return given_back(results, entry.outputs);
}

// Outputs for a tuple of inputs, or the object itself where such a call is new.
PyObject* called(PyObject* self, PyObject* const* args, size_t nargs, PyObject*) {
  HANDLE_TH_ERRORS
  auto* calls = reinterpret_cast<Calls*>(self);
  Key key;
  if (PyVectorcall_NARGS(nargs) != 1 || !PyTuple_CheckExact(args[0]) ||
      !key_of(args[0], key, false, calls->strides))
    return Py_NewRef(self);
  auto found = calls->entries->find(key);
  if (found == calls->entries->end()) {
    if (!added(self, args[0])) return Py_NewRef(self);
    found = calls->entries->find(key);
    if (found == calls->entries->end()) return Py_NewRef(self);
  }
  std::shared_ptr<Entry> entry = found->second;
  try {
    return run_entry(*entry, args[0]);
  } catch (const c10::OutOfMemoryError&) {  // Python says what it was for
    return Py_NewRef(self);
  }
  END_HANDLE_TH_ERRORS
}

std::shared_ptr<Run> run_of(py::handle object) {
  if (py::isinstance<Run>(object)) return object.cast<std::shared_ptr<Run>>();
  return std::make_shared<PythonRun>(object.ptr());
}

// add(inputs, run, recorded or None, outputs, [(place, what makes a tensor of a number, device)], orders of axes of an
// operator's outputs or None)
PyObject* add(PyObject* self, PyObject* args) {
  HANDLE_TH_ERRORS
  auto given = py::reinterpret_borrow<py::tuple>(args);
  auto& calls = *reinterpret_cast<Calls*>(self);
  Key key;
  if (!key_of(given[0].ptr(), key, false, calls.strides)) Py_RETURN_FALSE;
  auto entry = std::make_shared<Entry>();
  entry->run = run_of(given[1]);
  if (!given[2].is_none()) entry->recorded = given[2].cast<std::shared_ptr<Recorded>>();
  entry->outputs = given[3].cast<size_t>();
  for (auto item : given[4]) {
    auto number = item.cast<py::tuple>();
    auto like = THPVariable_Unpack(number[2].ptr());
    entry->numbers.emplace_back(number[0].cast<int>(), number[1].ptr(), like.device());
  }
  if (!given[5].is_none()) entry->own = given[5].cast<std::vector<AxisOrder>>();
  (*calls.entries)[key] = std::move(entry);
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

// add_class(inputs, what adds calls like this one)
PyObject* add_class(PyObject* self, PyObject* args) {
  HANDLE_TH_ERRORS
  auto given = py::reinterpret_borrow<py::tuple>(args);
  auto& calls = *reinterpret_cast<Calls*>(self);
  Key key;
  if (key_of(given[0].ptr(), key, true, calls.strides)) calls.classes->emplace(key, given[1]);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

Py_ssize_t length(PyObject* self) { return reinterpret_cast<Calls*>(self)->entries->size(); }

// Calls(strides=False)
PyObject* new_calls(PyTypeObject* type, PyObject* args, PyObject* named) {
  static char name[] = "strides";
  static char* names[] = {name, nullptr};
  int strides = 0;
  if (!PyArg_ParseTupleAndKeywords(args, named, "|p", names, &strides)) return nullptr;
  auto* calls = reinterpret_cast<Calls*>(type->tp_alloc(type, 0));
  if (!calls) return nullptr;
  calls->call = called;
  calls->strides = strides;
  calls->entries = new std::unordered_map<Key, std::shared_ptr<Entry>, Hash>();
  calls->classes = new std::unordered_map<Key, py::object, Hash>();
  return reinterpret_cast<PyObject*>(calls);
}

void delete_calls(PyObject* self) {
  delete reinterpret_cast<Calls*>(self)->entries;
  delete reinterpret_cast<Calls*>(self)->classes;
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef methods[] = {
    {"add", add, METH_VARARGS, nullptr}, {"add_class", add_class, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
PySequenceMethods sequence = {};

PyTypeObject calls_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

void add_calls(py::module_& module) {
  sequence.sq_length = length;
  calls_type.tp_name = "tilec_native.Calls";
  calls_type.tp_basicsize = sizeof(Calls);
  calls_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  calls_type.tp_vectorcall_offset = offsetof(Calls, call);
  calls_type.tp_call = PyVectorcall_Call;
  calls_type.tp_new = new_calls;
  calls_type.tp_dealloc = delete_calls;
  calls_type.tp_methods = methods;
  calls_type.tp_as_sequence = &sequence;
  if (PyType_Ready(&calls_type) < 0) throw py::error_already_set();
  module.add_object("Calls", reinterpret_cast<PyObject*>(&calls_type));
}

// A number, or the place of one that is open, alone in a tuple.
StepNumber number_of(py::handle given) {
  if (PyTuple_CheckExact(given.ptr())) return {given.cast<py::tuple>()[0].cast<int64_t>(), true};
  return {Plan::bits_of(given), false};
}

std::vector<Argument> arguments_of(const py::list& given) {
  std::vector<Argument> found;
  for (auto item : given) {
    auto [kind, value] = item.cast<std::pair<std::string, py::object>>();
    Argument a{Argument::NUMBER};
    if (kind == "map") {
      auto [slot, offset, bytes] = value.cast<std::tuple<int64_t, int64_t, std::string>>();
      TORCH_CHECK(bytes.size() == sizeof(TensorMap), "no tensor map");
      a.kind = Argument::MAP, a.value.value = slot, a.offset = offset;
      std::memcpy(&a.map, bytes.data(), sizeof a.map);
    } else {
      a.value = number_of(kind == "fp32" && PyLong_Check(value.ptr()) ? py::object(py::float_(value)) : value);
      if (kind == "tensor") a.kind = Argument::TENSOR;
      if (kind == "workspace") a.kind = Argument::WORKSPACE;
    }
    found.push_back(a);
  }
  return found;
}

// A plan, of steps as tuples: ("empty", place, sizes, a tensor of its type), ("launch", kernel, grid, threads, bytes
// of shared memory, cooperative, arguments), ("python", function, reads, writes), ("free", places).
std::shared_ptr<Plan> plan(py::object like, int64_t workspace, int slots, py::list steps, std::vector<int> outputs) {
  std::vector<Step> made;
  Plan::Functions functions;
  for (auto item : steps) {
    auto given = item.cast<py::tuple>();
    auto kind = given[0].cast<std::string>();
    Step step{};
    if (kind == "empty") {
      step.kind = Step::EMPTY;
      step.slot = given[1].cast<int>();
      for (auto n : given[2]) step.sizes.push_back(number_of(n));
      step.dtype = THPVariable_Unpack(given[3].ptr()).scalar_type();
    } else if (kind == "launch") {
      step.kind = Step::LAUNCH;
      step.kernel = reinterpret_cast<void*>(given[1].cast<uintptr_t>());
      auto grid = given[2].cast<py::list>();
      for (int axis = 0; axis < 3; ++axis) step.grid[axis] = number_of(grid[axis]);
      step.threads = given[3].cast<unsigned>();
      step.shared = given[4].cast<unsigned>();
      step.cooperative = given[5].cast<bool>();
      step.arguments = arguments_of(given[6].cast<py::list>());
    } else if (kind == "python") {
      step.kind = Step::PYTHON;
      step.function = functions.size();
      functions.push_back(std::make_shared<Function>(py::object(given[1]).ptr()));
      functions.back()->look();
      step.reads = given[2].cast<std::vector<std::pair<std::string, int>>>();
      step.writes = given[3].cast<std::vector<std::pair<std::string, int>>>();
    } else {
      step.kind = Step::FREE;
      step.slots = given[1].cast<std::vector<int>>();
    }
    made.push_back(std::move(step));
  }
  at::Device device = THPVariable_Unpack(like.ptr()).device();
  auto shared = std::make_shared<const Steps>(device, slots, std::move(made), std::move(outputs));
  return std::make_shared<Plan>(std::move(shared), workspace, std::vector<int64_t>(), std::move(functions));
}

std::shared_ptr<Recorded> recorded(
    py::object python, size_t inputs, std::vector<int> keep, std::vector<bool> constant) {
  TORCH_CHECK(inputs <= MOST && constant.size() <= MOST, "too many tensors");
  auto made = std::make_shared<Recorded>(Ref(python.ptr()));
  made->inputs = inputs;
  made->outputs = constant.size();
  made->keep = std::move(keep);
  made->constant = std::move(constant);
  return made;
}

// Let later backward passes like this one go straight to what they run.
void add_pass(
    Recorded& recorded, const std::vector<bool>& needed, py::tuple kept, py::tuple cotangents, py::object run,
    std::vector<int> sources, py::list beside, py::list gradients) {
  auto pass = std::make_shared<Pass>();
  uint64_t bits = 0;
  for (size_t i = 0; i < needed.size(); ++i) bits |= uint64_t(needed[i]) << i;
  if (!pass_key(pass->key, bits, unwrapped(kept.ptr()), unwrapped(cotangents.ptr()))) return;
  if (!run.is_none()) pass->run = run_of(run);
  pass->sources = std::move(sources);
  for (auto tensor : beside) pass->beside.push_back(THPVariable_Unpack(tensor.ptr()));
  for (auto item : gradients) {
    auto [place, view, axes, shape] = item.cast<std::tuple<int, bool, std::vector<int>, std::vector<int64_t>>>();
    pass->gradients.push_back({place, view, std::move(axes), std::move(shape)});
  }
  std::lock_guard<std::mutex> lock(recorded.mutex);
  if (recorded.passes.size() < MOST) recorded.passes.push_back(std::move(pass));
}

}  // namespace
}  // namespace tilec

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace tilec;
  py::class_<Run, std::shared_ptr<Run>>(module, "Run").def("__call__", [](Run& run, py::args inputs) {
    Tensors results = run(unwrapped(inputs.ptr()));
    py::tuple made(results.size());
    for (size_t i = 0; i < results.size(); ++i) made[i] = checked(wrapped(results[i]));
    return made;
  });
  py::class_<Plan, Run, std::shared_ptr<Plan>>(module, "Plan")
      .def("filled", &Plan::filled)
      .def("in_python", &Plan::in_python);
  py::class_<Recorded, std::shared_ptr<Recorded>>(module, "Recorded");
  add_calls(module);
  module.attr("MOST") = MOST;
  module.def("plan", &plan);
  module.def("use_driver", [](std::string path) { Driver::path = std::move(path); });
  module.def("recorded", &recorded);
  module.def("compared", &selection::compared, py::call_guard<py::gil_scoped_release>());
  module.def("inside", &selection::inside, py::call_guard<py::gil_scoped_release>());
  module.def("combined", &parts::combined);
  module.def("add_rows", &scatter::add_rows, py::call_guard<py::gil_scoped_release>());
  module.def("within", &scatter::within, py::call_guard<py::gil_scoped_release>());
  module.def("running", &scan::running, py::call_guard<py::gil_scoped_release>());
  module.def("shares", &selection::shares, py::call_guard<py::gil_scoped_release>());
  module.def("chosen", &selection::chosen, py::call_guard<py::gil_scoped_release>());
  module.def("chosen_by", &selection::chosen_by, py::call_guard<py::gil_scoped_release>());
  module.def("add_pass", &add_pass);
  py::module_::import("atexit").attr("register")(py::cpp_function(&Interpreter::leave));
}
