#include "moesaic/comm/mpi.h"

#include <unistd.h>

#include <array>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "moesaic/comm/collectives.h"
#include "moesaic/comm/mpi_engine.h"
#include "moesaic/core/error.h"

namespace moesaic {
namespace {

class MpiMessage final : public Message {
 public:
  MpiMessage(std::shared_ptr<MpiEngine> engine, std::shared_ptr<MpiEntry> entry)
      : engine_(std::move(engine)), entry_(std::move(entry)) {}
  ~MpiMessage() override { engine_->give_up(*entry_); }

  bool done() override {
    engine_->loss.check();
    const MpiStage stage = entry_->stage;
    if (stage != MpiStage::kSizesDiffer) return stage == MpiStage::kDone;
    const std::int64_t peer_bytes = entry_->peer_bytes;
    throw CorruptData(fmt::format(
        "rank {} expects {} bytes, but rank {} sends {} (tag {:#x})", engine_->rank(), entry_->bytes,
        entry_->peer, peer_bytes < 0 ? std::string("more") : std::to_string(peer_bytes), entry_->tag));
  }

 private:
  std::shared_ptr<MpiEngine> engine_;
  std::shared_ptr<MpiEntry> entry_;
};

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(MpiOptions options) : engine_(std::make_shared<MpiEngine>(options.piece_bytes)) {}

  int rank() const override { return engine_->rank(); }
  int world_size() const override { return engine_->world_size(); }

  std::unique_ptr<Message> send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    return post(true, peer, tag, const_cast<std::byte*>(bytes.data()), bytes.size());
  }
  std::unique_ptr<Message> receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    return post(false, peer, tag, bytes.data(), bytes.size());
  }

  std::uint64_t progress() override {
    engine_->loss.check();
    return engine_->pulse.count();
  }
  std::uint64_t wait_for_progress(std::uint64_t seen, Clock::time_point deadline) override {
    const std::uint64_t count = engine_->wait(seen, deadline);
    engine_->loss.check();
    return count;
  }

  void abort(const std::string& reason) noexcept override {
    std::string what;
    try {
      what = fmt::format("rank {} aborted: {}", rank(), reason);
    } catch (...) {
      // Out of memory: the rank alone must do.
    }
    engine_->loss.record(rank(), what);
    engine_->pulse.beat();
  }

 private:
  std::unique_ptr<Message> post(bool sending, int peer, Tag tag, std::byte* data, std::size_t bytes) {
    engine_->loss.check();
    require(peer >= 0 && peer < world_size(), "peer {} is not in 0..{}", peer, world_size() - 1);
    require(tag < (Tag{1} << 31), "tag {:#x} does not fit in 31 bits", tag);
    auto entry = std::make_shared<MpiEntry>(sending, peer, tag, data, static_cast<std::int64_t>(bytes));
    auto message = std::make_unique<MpiMessage>(engine_, entry);
    engine_->post(std::move(entry));
    return message;
  }

  std::shared_ptr<MpiEngine> engine_;
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(MpiOptions options) {
  return std::make_unique<MpiTransport>(options);
}

std::span<const EnvironmentSetting> mpi_environment() {
  static constexpr EnvironmentSetting kSettings[] = {{"OMPI_MCA_btl_tcp_eager_limit", "4194304"},
                                                     {"OMPI_MCA_btl_tcp_rndv_eager_limit", "4194304"},
                                                     {"OMPI_MCA_btl_tcp_max_send_size", "4194304"}};
  return kSettings;
}

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return "unknown";
  const std::string_view version(text.data(), static_cast<std::size_t>(length));
  return std::string(version.substr(0, version.find_first_of(",\n")));  // what follows is how it was built
}

Topology discover_topology(Transport& mpi) {
  using Name = std::array<char, 256>;
  constexpr std::chrono::seconds kTimeout{60};
  Name mine{};
  if (gethostname(mine.data(), mine.size() - 1) != 0) throw IoError("the host's name cannot be read");
  const auto world_size = static_cast<std::size_t>(mpi.world_size());
  std::vector<Name> names(world_size);
  Communicator world(mpi, Topology::one_node(mpi.world_size()), kTimeout);
  const std::vector<std::int64_t> bytes(world_size, sizeof(Name));
  all_gather_v(world, std::as_bytes(std::span(mine)), bytes, std::as_writable_bytes(std::span(names)));
  std::map<std::string_view, int> node_of_name;
  std::vector<int> node_of_rank;
  for (const Name& name : names) {
    const int next = static_cast<int>(node_of_name.size());
    node_of_rank.push_back(node_of_name.try_emplace(name.data(), next).first->second);
  }
  return Topology::from_nodes(std::move(node_of_rank));
}

}  // namespace moesaic
