#include "executor/process/tcp_group.h"

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
  if (place.rank == 0) return MeetAsHub(place, options.meet_limit);
  std::vector<Connection> peers;
  peers.push_back(MeetHub(place, options.meet_limit));
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

void TcpGroup::Barrier() { impl_->service.Collective(CollectiveCall::kBarrier, {}); }

void TcpGroup::Broadcast(std::span<std::byte> bytes) {
  const std::string_view mine(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string all =
      impl_->service.Collective(CollectiveCall::kBroadcast, std::string(rank() == 0 ? mine : ""));
  ZEROPLAN_CHECK(all.size() == bytes.size(), "rank 0 broadcasts {} bytes, rank {} expects {}",
                 all.size(), rank(), bytes.size());
  if (!all.empty()) std::memcpy(bytes.data(), all.data(), all.size());
}

std::vector<std::string> TcpGroup::AllGather(const std::string& text) {
  return UnpackTexts(impl_->service.Collective(CollectiveCall::kAllGather, text));
}

void TcpGroup::Fail(const std::string& message) noexcept {
  impl_->service.Fail(ExitCode::kRuntime, message);
}
void TcpGroup::FailWith(ExitCode code, const std::string& message) noexcept {
  impl_->service.Fail(code, message);
}
bool TcpGroup::failed() const noexcept { return impl_->service.failed(); }
std::string TcpGroup::failure() const { return impl_->service.failure(); }
ExitCode TcpGroup::failure_code() const noexcept { return impl_->service.failure_code(); }

}  // namespace zeroplan
