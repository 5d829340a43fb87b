// DeepSpeed's stage 3 knows the order of modules: its leaf modules, and the steps of a micro-step's
// trace that use a parameter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "planner/runtimes/torch_model.h"

namespace zeroplan {

// Leaf modules (deepspeed/utils/z3_leaf_module.py): a mixture's sparse block, whose parameters are
// fetched where its first module begins and freed where its last one ends.
class LeafModules {
 public:
  explicit LeafModules(const TorchModel& model) : model_(model) {
    const PlannedCode* code = model.code.planned;
    const bool any = code != nullptr && code->experts > 0 &&
                     (model.experts == ExpertModules::kLeaf ||
                      (model.experts == ExpertModules::kFused && code->leaf));
    if (!any) return;
    size_ = model.layer_modules - model.up_module();
    for (int layer = 0; layer < model.spec.layers; ++layer) {
      const int first = model.first_layer_module + layer * model.layer_modules + model.up_module();
      std::vector<int>& params = params_[first];
      for (int module = first; module < first + size_; ++module) {
        const std::vector<int>& of = model.modules[static_cast<size_t>(module)].params;
        params.insert(params.end(), of.begin(), of.end());
      }
    }
  }

  // A module of a leaf has begun and the leaf's last one has not ended.
  bool open() const { return left_ > 0; }
  // The leaf of a module, named by its router; a module of no leaf itself.
  int Of(int module) const {
    const int place = module - model_.first_layer_module;
    if (size_ == 0 || place < 0 || module >= model_.final_norm()) return module;
    const int in_layer = place % model_.layer_modules;
    return in_layer < model_.up_module() ? module : module - in_layer + model_.up_module();
  }
  // True if `*module` begins, or ends, what is fetched at once, which it becomes.
  bool Enters(int* module) {
    if (!Contains(module)) return true;
    if (left_ > 0) return false;
    left_ = size_;
    return true;
  }
  bool Leaves(int* module) { return !Contains(module) || --left_ == 0; }
  // The parameters of a leaf; null: `module` is none.
  const std::vector<int>* Params(int module) const {
    const auto found = params_.find(module);
    return found == params_.end() ? nullptr : &found->second;
  }

 private:
  bool Contains(int* module) const {
    *module = Of(*module);
    return params_.contains(*module);
  }

  const TorchModel& model_;
  int size_ = 0, left_ = 0;  // modules of a leaf; those that have not ended in this pass
  std::map<int, std::vector<int>> params_;
};

// The steps of a trace that use each parameter.
class TraceUses {
 public:
  explicit TraceUses(size_t params) : uses_(params) {}
  void BeginStep() { before_.push_back(elements_); }
  void Use(size_t param, uint64_t elements) {
    uses_[param].push_back(static_cast<int>(before_.size()) - 1);
    elements_ += elements;
  }
  // True if `param` is used at step `from` or later, with fewer than `distance` elements of other
  // steps before it.
  bool Soon(size_t param, int from, uint64_t distance) const {
    const auto next = std::lower_bound(uses_[param].begin(), uses_[param].end(), from);
    return next != uses_[param].end() && Before(*next) - Before(from) < distance;
  }

 private:
  uint64_t Before(int step) const { return before_[static_cast<size_t>(step)]; }

  uint64_t elements_ = 0;
  std::vector<uint64_t> before_;  // elements in the trace before each step
  std::vector<std::vector<int>> uses_;
};

}  // namespace zeroplan
