#include "library/ask.h"
#include "library/report_state.h"
#include "planner/page/html.h"

namespace zeroplan::v1 {
namespace {

zeroplan::Page Drawn(const Report::State* state, const std::string& made_by) {
  if (state == nullptr) {
    ThrowUsage("a report of no answer has no pictures; give it to MakePlan or MakeEstimate first");
  }
  PageOrigin origin = state->origin;
  if (!made_by.empty()) origin.command = made_by;
  return state->page(CostModel(state->hardware, state->shape), origin);
}

}  // namespace

Report::Report() = default;
Report::~Report() = default;
Report::Report(const Report&) = default;
Report::Report(Report&&) noexcept = default;
Report& Report::operator=(const Report&) = default;
Report& Report::operator=(Report&&) noexcept = default;

std::string Report::Page(const std::string& made_by) const {
  return WithErrors([&] { return RenderPage(Drawn(state_.get(), made_by)); });
}

std::string Report::Pictures() const {
  return WithErrors([&] { return RenderPictures(Drawn(state_.get(), "")); });
}

}  // namespace zeroplan::v1
