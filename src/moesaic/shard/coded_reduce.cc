#include "moesaic/shard/coded_reduce.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "moesaic/comm/algorithms.h"
#include "moesaic/comm/collectives.h"
#include "moesaic/comm/executor.h"
#include "moesaic/comm/ordered_sum.h"
#include "moesaic/core/error.h"
#include "moesaic/shard/seconds_into.h"

namespace moesaic {
namespace {

constexpr std::int64_t kWordBytes = 2;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

void grow(Buffer& buffer, std::int64_t bytes) {
  if (buffer.bytes() < bytes) buffer = Buffer(bytes);
}

std::int64_t total(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

}  // namespace

ReduceCounts& ReduceCounts::operator+=(const ReduceCounts& other) {
  runs += other.runs;
  words += other.words;
  live_words += other.live_words;
  coded_bytes += other.coded_bytes;
  encode_seconds += other.encode_seconds;
  decode_seconds += other.decode_seconds;
  seconds += other.seconds;
  return *this;
}

CodedReduce::CodedReduce(Communicator& group, std::vector<std::int64_t> part_elements,
                         std::vector<std::int64_t> part_offsets, std::vector<GradientPieces> part_pieces,
                         codec::GradientWire wire, std::uint64_t unit, std::string name, ReduceSpace& space)
    : group_(&group),
      part_elements_(std::move(part_elements)),
      part_offsets_(std::move(part_offsets)),
      part_pieces_(std::move(part_pieces)),
      wire_(wire),
      unit_(unit),
      name_(std::move(name)),
      space_(&space),
      carried_(group.topology().stands_for(group.rank())),
      sum_offsets_(index(group.size()), -1) {
  const auto size = static_cast<std::size_t>(group.size());
  require(
      part_elements_.size() == size && part_offsets_.size() == size && part_pieces_.size() == size,
      "coded reduce of {}: got {} parts, {} offsets and {} lists of pieces, expected one for each of the {} "
      "ranks",
      name_, part_elements_.size(), part_offsets_.size(), part_pieces_.size(), size);
  for (std::size_t part = 0; part < size; ++part) {
    std::int64_t words = 0;
    for (const codec::GradientPiece& piece : part_pieces_[part]) {
      words += static_cast<std::int64_t>(piece.words);
    }
    require(words == part_elements_[part],
            "coded reduce of {}: the pieces of rank {} have {} words, its part {}", name_, part, words,
            part_elements_[part]);
  }
  const auto place = [&](int owner) {
    sum_offsets_[index(owner)] = sums_bytes_;
    sums_bytes_ += part_elements_[index(owner)] * kWordBytes;
  };
  place(group.rank());
  for (const int owner : carried_) place(owner);
}

void CodedReduce::sum_inside_node(std::span<const std::uint16_t> whole) {
  grow(space_->sums, sums_bytes_);
  execute(*group_, "sum inside the node",
          node_sums_schedule(group_->topology(), group_->rank(), DType::kBF16, part_elements_, part_offsets_,
                             sum_offsets_),
          {.input = std::as_bytes(whole), .staging = space_->sums.span()});
}

std::vector<std::int64_t> CodedReduce::encode() {
  std::vector<std::int64_t> sizes(index(group_->size()), 0);
  std::int64_t bound = 0;
  for (const int owner : carried_) {
    bound += static_cast<std::int64_t>(codec::gradient_bound(part_pieces_[index(owner)], {}));
  }
  grow(space_->outbox, bound);
  const SecondsInto timer(counts_.encode_seconds);
  std::span<std::byte> free = space_->outbox.span();
  for (const int owner : carried_) {
    const auto words = static_cast<std::size_t>(part_elements_[index(owner)]);
    const std::uint16_t* sums = space_->sums.as<std::uint16_t>() + sum_offsets_[index(owner)] / kWordBytes;
    const codec::GradientMessage message = codec::encode_gradient(
        wire_, {sums, words}, part_pieces_[index(owner)], {.unit = unit_of(owner)}, free);
    free = free.subspan(message.bytes);
    sizes[index(owner)] = static_cast<std::int64_t>(message.bytes);
    counts_.words += part_elements_[index(owner)];
    counts_.live_words += static_cast<std::int64_t>(message.live_words);
    counts_.coded_bytes += sizes[index(owner)];
  }
  return sizes;
}

void CodedReduce::exchange(const std::vector<std::int64_t>& sizes) {
  // Only counterparts have something for each other, and who has is known to both; the others say nothing.
  const Topology& topology = group_->topology();
  const int rank = group_->rank();
  constexpr auto kSizeBytes = static_cast<std::int64_t>(sizeof(std::int64_t));
  std::vector<std::int64_t> send(sizes.size(), 0), receive(sizes.size(), 0);
  std::vector<std::int64_t> outbound, inbound;
  for (const int owner : carried_) {
    send[index(owner)] = kSizeBytes;
    outbound.push_back(sizes[index(owner)]);
  }
  for (int node = 0; node < topology.num_nodes(); ++node) {
    if (node != topology.node_of(rank)) receive[index(topology.counterpart(rank, node))] = kSizeBytes;
  }
  inbound.resize(static_cast<std::size_t>(topology.num_nodes() - 1));
  all_to_all_v(*group_, std::as_bytes(std::span(outbound)), send, std::as_writable_bytes(std::span(inbound)),
               receive);
  const auto bound = static_cast<std::int64_t>(codec::gradient_bound(part_pieces_[index(rank)], {}));
  received_.assign(sizes.size(), 0);
  std::size_t next = 0;
  for (int from = 0; from < group_->size(); ++from) {
    if (receive[index(from)] == 0) continue;
    received_[index(from)] = inbound[next++];
    if (received_[index(from)] < 0 || received_[index(from)] > bound) {
      throw CorruptData(fmt::format("gradients of {}: rank {} announces {} bytes, expected 0 to {}", name_,
                                    group_->world_rank(from), received_[index(from)], bound));
    }
  }
  grow(space_->inbox, total(received_));
  // The own outbox is ordered by owner, as all_to_all_v wants it: carried_ ascends.
  all_to_all_v(*group_, space_->outbox.span().first(static_cast<std::size_t>(total(sizes))), sizes,
               space_->inbox.span().first(static_cast<std::size_t>(total(received_))), received_);
}

void CodedReduce::add_nodes(std::span<float> sum) {
  const Topology& topology = group_->topology();
  const int rank = group_->rank();
  const SecondsInto timer(counts_.decode_seconds);
  // Sums of other nodes go where those for them were: they have left.
  const auto words = static_cast<std::size_t>(part_elements_[index(rank)]);
  const auto others = static_cast<std::int64_t>(topology.num_nodes() - 1);
  const std::int64_t own_bytes = part_elements_[index(rank)] * kWordBytes;
  grow(space_->outbox, others * own_bytes);
  std::vector<std::vector<const std::byte*>> parts(static_cast<std::size_t>(topology.num_nodes()));
  std::vector<std::int64_t> begin(received_.size() + 1, 0);
  std::partial_sum(received_.begin(), received_.end(), begin.begin() + 1);
  std::byte* decoded = space_->outbox.data();
  for (int node = 0; node < topology.num_nodes(); ++node) {
    if (node == topology.node_of(rank)) {
      parts[index(node)] = {space_->sums.data() + sum_offsets_[index(rank)]};
      continue;
    }
    const int from = topology.counterpart(rank, node);
    const std::span<const std::byte> message{space_->inbox.data() + begin[index(from)],
                                             static_cast<std::size_t>(received_[index(from)])};
    const codec::GradientWire wire =
        codec::decode_gradient(message, unit_of(rank), {reinterpret_cast<std::uint16_t*>(decoded), words});
    if (wire != wire_) {
      throw CorruptData(fmt::format(
          "ranks disagree: rank {} sends the gradients of {} by {}, rank {} expects {}; all must do the same",
          group_->world_rank(from), name_, codec::name_of(wire), group_->world_rank(rank),
          codec::name_of(wire_)));
    }
    parts[index(node)] = {decoded};
    decoded += own_bytes;
  }
  ordered_sum(DType::kBF16, parts, part_elements_[index(rank)], DType::kF32,
              std::as_writable_bytes(sum).data());
}

void CodedReduce::run(std::span<const std::uint16_t> whole, std::span<float> sum) {
  require(std::ssize(sum) == part_elements_[index(group_->rank())],
          "coded reduce of {}: got room for {} elements, expected {}", name_, sum.size(),
          part_elements_[index(group_->rank())]);
  const SecondsInto timer(counts_.seconds);
  ++counts_.runs;
  sum_inside_node(whole);
  exchange(encode());
  add_nodes(sum);
}

}  // namespace moesaic
