// zeroplan._core: the C++ library for Python. zeroplan/__init__.py is what people call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <zeroplan/zeroplan.h>

#include <chrono>
#include <cstring>

namespace nb = nanobind;
namespace zp = zeroplan::v1;

namespace {

using Words = std::vector<std::pair<std::string, std::string>>;

zp::Options OptionsOf(const Words& words) {
  zp::Options options;
  for (const auto& [name, value] : words) options.emplace_back(name, value);
  return options;
}

// Raises KeyboardInterrupt and the like in the middle of a search.
class Interruption {
 public:
  void operator()(uint64_t) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

nb::dict Estimate(const Words& words) {
  const zp::Options options = OptionsOf(words);
  zp::Estimate estimate;
  zp::Report report;
  {
    const nb::gil_scoped_release unlocked;
    estimate = zp::MakeEstimate(options, report);
  }
  nb::dict dict;
  dict["json"] = estimate.json;
  dict["assumed"] = estimate.assumed;
  dict["notes"] = estimate.notes;
  dict["report"] = std::move(report);
  return dict;
}

nb::dict Plan(const Words& words) {
  const zp::Options options = OptionsOf(words);
  zp::Plan plan;
  zp::Report report;
  {
    const nb::gil_scoped_release unlocked;
    plan = zp::MakePlan(options, report, Interruption());
  }
  nb::dict dict;
  dict["json"] = plan.json;
  dict["notes"] = plan.notes;
  dict["largest"] = plan.largest;
  dict["report"] = std::move(report);
  return dict;
}

nb::dict Machines(const Words& words) {
  const zp::Options options = OptionsOf(words);
  zp::MachineComparison comparison;
  zp::Report report;
  {
    const nb::gil_scoped_release unlocked;
    comparison = zp::CompareMachines(options, report, Interruption());
  }
  nb::dict dict;
  dict["json"] = comparison.json;
  dict["report"] = std::move(report);
  return dict;
}

nb::dict Why(const std::string& log, const Words& words) {
  const zp::Options options = OptionsOf(words);
  zp::RunExplained explained;
  {
    const nb::gil_scoped_release unlocked;
    explained = zp::ExplainRun(log, options);
  }
  nb::dict dict;
  dict["text"] = explained.text;
  dict["json"] = explained.json;
  dict["incomplete"] = explained.incomplete;
  return dict;
}

using Listed = std::vector<std::vector<std::string>>;

Listed ListedOptions(const std::vector<zp::OptionHelp>& options) {
  Listed listed;
  for (const zp::OptionHelp& option : options) {
    listed.push_back({option.name, option.type, option.help});
  }
  return listed;
}

// Error(kUsage) and the like as classes of zeroplan/_errors.py. File names need not be UTF-8.
void Translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const zp::Error& error) {
    const char* name = error.exit_code() == 3 ? "NothingFits" : "Error";
    const nb::object type = nb::module_::import_("zeroplan._errors").attr(name);
    const auto size = static_cast<Py_ssize_t>(std::strlen(error.what()));
    const nb::object text = nb::steal(PyUnicode_DecodeUTF8(error.what(), size, "surrogateescape"));
    const nb::object value = type(text, error.exit_code());
    PyErr_SetObject(type.ptr(), value.ptr());
  }
}

}  // namespace

NB_MODULE(_core, module) {
  nb::register_exception_translator(Translate);
  const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<zp::Report>(module, "Report")
      .def("page", &zp::Report::Page, nb::arg("made_by"), unlocked)
      .def("pictures", &zp::Report::Pictures, unlocked);
  module.def("estimate", &Estimate, nb::arg("options"));
  module.def("plan", &Plan, nb::arg("options"));
  module.def("machines", &Machines, nb::arg("options"));
  module.def("why", &Why, nb::arg("log"), nb::arg("options"));
  module.def("estimate_options", [] { return ListedOptions(zp::EstimateOptions()); });
  module.def("plan_options", [] { return ListedOptions(zp::PlanOptions()); });
  module.def("why_options", [] { return ListedOptions(zp::ExplainRunOptions()); });
  module.def("version", &zp::Version);
}
