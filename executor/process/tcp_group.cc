#include "executor/process/tcp_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "executor/process/rendezvous.h"
#include "executor/process/star_service.h"

namespace zeroplan {
namespace {

std::vector<Connection> Meet(const ProcessPlace& place, const TcpGroupOptions& options) {
  ZEROPLAN_CHECK(place.world_size > 1 && place.rank >= 0 && place.rank < place.world_size,
                 "rank {} of {}", place.rank, place.world_size);
  const MeetOptions meeting{options.meet_limit, options.stop_requested};
  if (place.rank == 0) return MeetAsHub(place, meeting);
  std::vector<Connection> peers;
  peers.push_back(MeetHub(place, meeting));
  return peers;
}

}  // namespace

struct TcpGroup::Impl {
  Impl(const ProcessPlace& place, const TcpGroupOptions& options)
      : service(place, options, Meet(place, options)) {}
  StarService service;
};

TcpGroup::TcpGroup(const ProcessPlace& place, const TcpGroupOptions& options)
    : impl_(std::make_unique<Impl>(place, options)) {}
TcpGroup::~TcpGroup() = default;

const ProcessPlace& TcpGroup::place() const { return impl_->service.place(); }

void TcpGroup::Barrier() { impl_->service.Collective(CollectiveCall::kBarrier, {}, 0); }

void TcpGroup::Broadcast(std::span<std::byte> bytes) {
  const std::string_view mine(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::vector<std::string> all = impl_->service.Collective(
      CollectiveCall::kBroadcast, std::string(rank() == 0 ? mine : ""), bytes.size());
  if (!bytes.empty()) std::memcpy(bytes.data(), all[0].data(), bytes.size());
}

std::vector<std::string> TcpGroup::AllGather(const std::string& text) {
  return impl_->service.Collective(CollectiveCall::kAllGather, text, 0);
}

void TcpGroup::SetDeadline(std::chrono::seconds limit, const std::string& purpose) {
  impl_->service.SetDeadline(std::min<std::chrono::seconds>(limit, kLongestLimit), purpose);
}
void TcpGroup::Fail(const std::string& message) noexcept {
  impl_->service.Fail(ExitCode::kRuntime, message);
}
void TcpGroup::FailWith(ExitCode code, const std::string& message) noexcept {
  impl_->service.Fail(code, message);
}
bool TcpGroup::failed() const noexcept { return impl_->service.failed(); }
std::string TcpGroup::failure() const { return impl_->service.failure(); }
bool TcpGroup::rank_0_says_it() const noexcept { return impl_->service.rank_0_says_it(); }
ExitCode TcpGroup::failure_code() const noexcept { return impl_->service.failure_code(); }

}  // namespace zeroplan
