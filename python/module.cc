// zeroplan._core: the C++ library for Python. zeroplan/__init__.py is what people call. Written
// against Python's limited API, so that one build serves Python 3.9 and all later ones.
#define Py_LIMITED_API 0x03090000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <zeroplan/zeroplan.h>

#include <chrono>
#include <memory>
#include <new>
#include <utility>

namespace zp = zeroplan::v1;

namespace {

// Thrown where a Python exception is set.
struct Raised {};

// Owns a reference.
class Ref {
 public:
  // Takes over a new reference. Throws Raised if it is null.
  explicit Ref(PyObject* made) : object_(made) {
    if (made == nullptr) throw Raised();
  }
  ~Ref() { Py_XDECREF(object_); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;

  PyObject* get() const { return object_; }
  PyObject* Release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_;
};

// File names need not be UTF-8: other bytes pass as Python passes them.
constexpr const char* kOtherBytes = "surrogateescape";

Ref ToPython(const std::string& text) {
  return Ref(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), kOtherBytes));
}

Ref ToPython(const zp::OptionHelp& option);
template <typename First, typename Second>
Ref ToPython(const std::pair<First, Second>& pair);
template <typename Item>
Ref ToPython(const std::vector<Item>& items) {
  Ref list(PyList_New(0));
  for (const Item& item : items) {
    if (PyList_Append(list.get(), ToPython(item).get()) != 0) throw Raised();
  }
  return list;
}
template <typename First, typename Second>
Ref ToPython(const std::pair<First, Second>& pair) {
  return Ref(PyTuple_Pack(2, ToPython(pair.first).get(), ToPython(pair.second).get()));
}
Ref ToPython(const zp::OptionHelp& option) {
  return ToPython(std::vector<std::string>{option.name, option.type, option.help});
}

std::string FromPython(PyObject* text) {
  const Ref bytes(PyUnicode_AsEncodedString(text, "utf-8", kOtherBytes));
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes.get(), &data, &size) != 0) throw Raised();
  return std::string(data, static_cast<size_t>(size));
}

// A list of pairs of texts.
zp::Options OptionsFrom(PyObject* list) {
  zp::Options options;
  const Py_ssize_t size = PyList_Size(list);
  if (size < 0) throw Raised();
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject *name = nullptr, *value = nullptr;
    if (!PyArg_ParseTuple(PyList_GetItem(list, i), "UU", &name, &value)) throw Raised();
    options.emplace_back(FromPython(name), FromPython(value));
  }
  return options;
}

void Put(const Ref& dict, const char* key, const Ref& value) {
  if (PyDict_SetItemString(dict.get(), key, value.get()) != 0) throw Raised();
}

// Other Python threads run during its lifetime.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() { PyEval_RestoreThread(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

// Raises KeyboardInterrupt and the like in the middle of a search.
class Interruption {
 public:
  void operator()(uint64_t) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    const PyGILState_STATE state = PyGILState_Ensure();
    const bool raised = PyErr_CheckSignals() != 0;
    PyGILState_Release(state);
    if (raised) throw Raised();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// A report is a capsule of this name.
constexpr const char* kReport = "zeroplan.Report";

Ref ToPython(zp::Report report) {
  auto owned = std::make_unique<zp::Report>(std::move(report));
  Ref capsule(PyCapsule_New(owned.get(), kReport, [](PyObject* object) {
    delete static_cast<zp::Report*>(PyCapsule_GetPointer(object, kReport));
  }));
  static_cast<void>(owned.release());
  return capsule;
}

const zp::Report& ReportFrom(PyObject* capsule) {
  const auto* report = static_cast<zp::Report*>(PyCapsule_GetPointer(capsule, kReport));
  if (report == nullptr) throw Raised();
  return *report;
}

// zp::Error as a class of zeroplan/_errors.py.
void SetError(const zp::Error& error) {
  const char* name = error.exit_code() == 3 ? "NothingFits" : "Error";
  const Ref module(PyImport_ImportModule("zeroplan._errors"));
  const Ref type(PyObject_GetAttrString(module.get(), name));
  const Ref text = ToPython(std::string(error.what()));
  const Ref value(PyObject_CallFunction(type.get(), "Oi", text.get(), error.exit_code()));
  PyErr_SetObject(type.get(), value.get());
}

// Returns the result of `body`; null, with an exception set, if it throws.
template <typename Body>
PyObject* Answer(Body body) noexcept {
  try {
    try {
      return body().Release();
    } catch (const zp::Error& error) {
      SetError(error);
    } catch (const std::bad_alloc&) {
      PyErr_NoMemory();
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
    }
  } catch (const Raised&) {
  }
  return nullptr;
}

// Asks `make(options, report)` while other threads run; `fill(dict, answer)` adds what it returns.
template <typename Make, typename Fill>
PyObject* AnswerWithReport(PyObject* words, Make make, Fill fill) {
  return Answer([&] {
    const zp::Options options = OptionsFrom(words);
    zp::Report report;
    const auto answer = [&] {
      const Unlocked unlocked;
      return make(options, report);
    }();
    Ref dict(PyDict_New());
    Put(dict, "json", ToPython(answer.json));
    fill(dict, answer);
    Put(dict, "report", ToPython(std::move(report)));
    return dict;
  });
}

PyObject* Estimate(PyObject*, PyObject* words) {
  return AnswerWithReport(
      words,
      [](const zp::Options& options, zp::Report& report) {
        return zp::MakeEstimate(options, report);
      },
      [](const Ref& dict, const zp::Estimate& estimate) {
        Put(dict, "assumed", ToPython(estimate.assumed));
        Put(dict, "notes", ToPython(estimate.notes));
      });
}

PyObject* Plan(PyObject*, PyObject* words) {
  return AnswerWithReport(
      words,
      [](const zp::Options& options, zp::Report& report) {
        return zp::MakePlan(options, report, Interruption());
      },
      [](const Ref& dict, const zp::Plan& plan) {
        Put(dict, "notes", ToPython(plan.notes));
        Put(dict, "largest", ToPython(plan.largest));
      });
}

PyObject* Machines(PyObject*, PyObject* words) {
  return AnswerWithReport(
      words,
      [](const zp::Options& options, zp::Report& report) {
        return zp::CompareMachines(options, report, Interruption());
      },
      [](const Ref&, const zp::MachineComparison&) {});
}

PyObject* Why(PyObject*, PyObject* arguments) {
  return Answer([&] {
    PyObject *log = nullptr, *words = nullptr;
    if (!PyArg_ParseTuple(arguments, "UO", &log, &words)) throw Raised();
    const std::string file = FromPython(log);
    const zp::Options options = OptionsFrom(words);
    zp::RunExplained explained;
    {
      const Unlocked unlocked;
      explained = zp::ExplainRun(file, options);
    }
    Ref dict(PyDict_New());
    Put(dict, "text", ToPython(explained.text));
    Put(dict, "json", ToPython(explained.json));
    Put(dict, "incomplete", ToPython(explained.incomplete));
    return dict;
  });
}

PyObject* Page(PyObject*, PyObject* arguments) {
  return Answer([&] {
    PyObject *report = nullptr, *made_by = nullptr;
    if (!PyArg_ParseTuple(arguments, "OU", &report, &made_by)) throw Raised();
    const zp::Report& drawn = ReportFrom(report);
    const std::string call = FromPython(made_by);
    std::string page;
    {
      const Unlocked unlocked;
      page = drawn.Page(call);
    }
    return ToPython(page);
  });
}

PyObject* Pictures(PyObject*, PyObject* report) {
  return Answer([&] {
    const zp::Report& drawn = ReportFrom(report);
    std::string pictures;
    {
      const Unlocked unlocked;
      pictures = drawn.Pictures();
    }
    return ToPython(pictures);
  });
}

PyObject* EstimateOptions(PyObject*, PyObject*) {
  return Answer([] { return ToPython(zp::EstimateOptions()); });
}
PyObject* PlanOptions(PyObject*, PyObject*) {
  return Answer([] { return ToPython(zp::PlanOptions()); });
}
PyObject* WhyOptions(PyObject*, PyObject*) {
  return Answer([] { return ToPython(zp::ExplainRunOptions()); });
}
PyObject* Version(PyObject*, PyObject*) {
  return Answer([] { return ToPython(zp::Version()); });
}

PyMethodDef functions[] = {{"estimate", Estimate, METH_O, nullptr},
                           {"plan", Plan, METH_O, nullptr},
                           {"machines", Machines, METH_O, nullptr},
                           {"why", Why, METH_VARARGS, nullptr},
                           {"page", Page, METH_VARARGS, nullptr},
                           {"pictures", Pictures, METH_O, nullptr},
                           {"estimate_options", EstimateOptions, METH_NOARGS, nullptr},
                           {"plan_options", PlanOptions, METH_NOARGS, nullptr},
                           {"why_options", WhyOptions, METH_NOARGS, nullptr},
                           {"version", Version, METH_NOARGS, nullptr},
                           {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_core", nullptr, 0, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

// Python prescribes the name.
PyMODINIT_FUNC PyInit__core() {  // NOLINT(bugprone-reserved-identifier)
  return PyModule_Create(&module);
}
