#include "moesaic/shard/coded_gather.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "moesaic/comm/collectives.h"
#include "moesaic/comm/executor.h"
#include "moesaic/core/error.h"
#include "moesaic/shard/gather_header.h"
#include "moesaic/shard/seconds_into.h"

namespace moesaic {
namespace {

// More slices hide more of the coding behind the network; each costs a round of messages.
constexpr std::int64_t kMostSlices = 4;
// Behind each slice but the last: the bytes of the next, eight of them.
constexpr std::int64_t kTrailerBytes = 8;
constexpr std::int64_t kChunkWords = codec::kMaxChunkWords;

std::size_t index(int part) { return static_cast<std::size_t>(part); }

std::int64_t slice_words_of(std::int64_t most_words) {
  const std::int64_t chunks = (most_words + kChunkWords - 1) / kChunkWords;
  return std::max<std::int64_t>(1, (chunks + kMostSlices - 1) / kMostSlices) * kChunkWords;
}

}  // namespace

GatherCounts& GatherCounts::operator+=(const GatherCounts& other) {
  runs += other.runs;
  unsent += other.unsent;
  keys += other.keys;
  resyncs += other.resyncs;
  words += other.words;
  coded_bytes += other.coded_bytes;
  encode_seconds += other.encode_seconds;
  decode_seconds += other.decode_seconds;
  seconds += other.seconds;
  return *this;
}

std::int64_t CodedGather::slices_of(std::int64_t most_words) {
  return std::max<std::int64_t>(1,
                                (most_words + slice_words_of(most_words) - 1) / slice_words_of(most_words));
}

CodedGather::CodedGather(Communicator& group, std::vector<std::int64_t> part_words,
                         std::vector<std::int64_t> part_offsets, codec::Method method, ReferenceMode mode,
                         std::uint64_t unit, std::string name, CodingSpace& space)
    : group_(&group),
      part_words_(std::move(part_words)),
      part_offsets_(std::move(part_offsets)),
      method_(method),
      mode_(mode),
      unit_(unit),
      name_(std::move(name)),
      space_(&space) {
  require(std::ssize(part_words_) == size() && std::ssize(part_offsets_) == size(),
          "coded gather of {}: got {} parts and {} offsets, expected one for each of the {} ranks", name_,
          part_words_.size(), part_offsets_.size(), size());
  require(method != codec::Method::kRaw, "coded gather of {}: got method raw, which has no code", name_);
  const std::int64_t most = std::ranges::max(part_words_);
  slice_words_ = slice_words_of(most);
  num_slices_ = slices_of(most);
  for (int part = 0; part < size(); ++part) {
    const auto words = static_cast<std::size_t>(part_words_[index(part)]);
    references_.push_back(
        holds(rank(), part) ? std::make_unique<codec::Reference>(codec::needs(method), words) : nullptr);
  }
}

bool CodedGather::holds(int holder, int part) const {
  if (mode_ == ReferenceMode::kRank || holder == part) return true;
  const Topology& topology = group_->topology();
  const int node = topology.node_of(holder);
  return topology.node_of(part) != node && topology.counterpart(part, node) == holder;
}

std::uint64_t CodedGather::unit_of(int part) const { return unit_ << 32 | static_cast<std::uint32_t>(part); }

std::uint64_t CodedGather::own_digest() const {
  std::uint64_t digest = 0;
  for (int part = 0; part < size(); ++part) {
    const codec::Reference* held = references_[index(part)].get();
    if (held != nullptr) digest ^= digest_of(part, held->epoch(), held->hash());
  }
  return digest;
}

std::int64_t CodedGather::reference_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& held : references_) {
    if (held) bytes += static_cast<std::int64_t>(held->bytes());
  }
  return bytes;
}

// One round of messages. Lives on the stack of attempt().
struct CodedGather::Attempt {
  CodedGather& gather;
  std::span<std::uint16_t> whole;
  bool key;
  std::optional<codec::Encoder> encoder;
  // Of each encoded slice: where it ends in the message.
  std::vector<std::int64_t> slice_ends{};
  std::vector<CodedPart> parts{};
  std::vector<std::int64_t> landing{};   // of each part, in staging
  std::vector<std::int64_t> received{};  // bytes of its message so far
  std::vector<std::int64_t> expected{};  // bytes of its next slice, without the trailer
  std::vector<std::optional<codec::Decoder>> decoders{};
  std::int64_t failed = 0;

  Attempt(CodedGather& g, std::span<const std::uint16_t> mine, std::span<std::uint16_t> w, bool k)
      : gather(g), whole(w), key(k) {
    const auto own = gather.in(whole, gather.rank());
    codec::EncodeOptions options{.unit = gather.unit_of(gather.rank()), .key = key};
    const auto bound = static_cast<std::int64_t>(codec::message_bound(mine.size(), options));
    if (gather.space_->message.bytes() < bound) gather.space_->message = Buffer(bound);
    const SecondsInto timer(gather.counts_.encode_seconds);
    const bool lossless = codec::lossless(gather.method_);
    if (lossless && !mine.empty()) std::memcpy(own.data(), mine.data(), mine.size_bytes());
    encoder.emplace(gather.method_, own_reference(), lossless ? std::span<const std::uint16_t>(own) : mine,
                    options, gather.space_->message.span(), lossless ? std::span<std::uint16_t>() : own);
  }

  codec::Reference& own_reference() { return *gather.references_[index(gather.rank())]; }

  // Encodes slice `s` of the own message, if there is one.
  void encode(std::int64_t s) {
    if (s >= gather.num_slices_) return;
    const SecondsInto timer(gather.counts_.encode_seconds);
    std::int64_t end = s == 0 ? 0 : slice_ends.back();
    // The last slice takes what is left, so that the message is whole.
    for (std::int64_t chunk = 0; chunk < gather.slice_words_ / kChunkWords || s + 1 == gather.num_slices_;
         ++chunk) {
      const auto bytes = encoder->next();
      if (bytes.empty()) break;
      end += std::ssize(bytes);
    }
    slice_ends.push_back(end);
  }
  std::int64_t slice_bytes(std::int64_t s) const {
    return slice_ends[static_cast<std::size_t>(s)] -
           (s == 0 ? 0 : slice_ends[static_cast<std::size_t>(s) - 1]);
  }

  GatherHeader header() {
    return {.unit = gather.unit_,
            .method = gather.method_,
            .key = key || !own_reference().valid(),
            .first_bytes = static_cast<std::uint64_t>(slice_bytes(0)),
            .epoch = own_reference().epoch(),
            .hash = own_reference().hash(),
            .digest = gather.own_digest()};
  }

  // Gathers everyone's header and checks that all ranks do the same. False: they do, but hold different
  // things.
  bool exchange_headers() {
    const auto mine = to_bytes(header());
    const std::vector<std::int64_t> sizes(index(gather.size()), kGatherHeaderBytes);
    std::vector<std::byte> bytes(kGatherHeaderBytes * index(gather.size()));
    all_gather_v(*gather.group_, mine, sizes, bytes);
    std::vector<GatherHeader> headers;
    for (int r = 0; r < gather.size(); ++r) {
      headers.push_back(
          gather_header_from(std::span(bytes).subspan(kGatherHeaderBytes * index(r), kGatherHeaderBytes),
                             gather.group_->world_rank(r)));
      const GatherHeader& theirs = headers.back();
      if (theirs.unit != headers[0].unit || theirs.method != headers[0].method) {
        throw CorruptData(fmt::format(
            "ranks disagree: rank {} gathers unit {} by {}, rank {} unit {} by {}; all must do the same",
            gather.group_->world_rank(0), headers[0].unit, codec::name_of(headers[0].method),
            gather.group_->world_rank(r), theirs.unit, codec::name_of(theirs.method)));
      }
    }
    plan(headers);
    return key || agree(headers);
  }

  bool agree(const std::vector<GatherHeader>& headers) {
    for (int r = 0; r < gather.size(); ++r) {
      std::uint64_t digest = 0;
      for (int part = 0; part < gather.size(); ++part) {
        if (!gather.holds(r, part)) continue;
        digest ^= digest_of(part, headers[index(part)].epoch, headers[index(part)].hash);
      }
      if (headers[index(r)].digest == digest && headers[index(r)].key == headers[0].key) continue;
      gather.last_error_ =
          fmt::format("rank {} does not hold what the others have sent before", gather.group_->world_rank(r));
      return false;
    }
    return true;
  }

  // Where messages lie: the own slice at the front of staging, then a place for each message that this rank
  // decodes.
  void plan(const std::vector<GatherHeader>& headers) {
    std::int64_t end = gather.space_->message.bytes() + kTrailerBytes;
    for (int part = 0; part < gather.size(); ++part) {
      const bool decoded = part != gather.rank() && gather.holds(gather.rank(), part);
      const auto words = static_cast<std::size_t>(gather.part_words_[index(part)]);
      landing.push_back(part == gather.rank() ? 0 : end);
      received.push_back(0);
      expected.push_back(static_cast<std::int64_t>(headers[index(part)].first_bytes));
      decoders.emplace_back();
      if (!decoded) continue;
      end += static_cast<std::int64_t>(codec::message_bound(words, {})) + kTrailerBytes;
      decoders.back().emplace(*gather.references_[index(part)], codec::Expected{.unit = gather.unit_of(part)},
                              gather.in(whole, part));
    }
    if (gather.space_->staging.bytes() < end) gather.space_->staging = Buffer(end);
    parts.resize(index(gather.size()));
  }

  void exchange_slices() {
    for (std::int64_t s = 0; s < gather.num_slices_; ++s) {
      lay_out(s);
      const Schedule schedule = coded_gather_schedule(
          gather.group_->topology(), gather.rank(), parts,
          gather.mode_ == ReferenceMode::kRank ? InsideNode::kCoded : InsideNode::kPlain);
      execute(*gather.group_, "coded gather", schedule,
              {.output = std::as_writable_bytes(whole), .staging = gather.space_->staging.span()},
              [&](const Op& op) { op.peer == gather.rank() ? encode(s + 2) : decode(op.peer, s); });
    }
  }

  std::int64_t trailer_bytes(std::int64_t s) const { return s + 1 < gather.num_slices_ ? kTrailerBytes : 0; }

  void lay_out(std::int64_t s) {
    for (int part = 0; part < gather.size(); ++part) {
      const std::int64_t words = gather.part_words_[index(part)];
      const std::int64_t begin = std::min(words, s * gather.slice_words_);
      const std::int64_t end = std::min(words, begin + gather.slice_words_);
      CodedPart& at = parts[index(part)];
      at.plain = {BufferId::kOutput, (gather.part_offsets_[index(part)] + begin) * 2, (end - begin) * 2};
      at.coded = {BufferId::kStaging, landing[index(part)] + received[index(part)], 0};
      if (part == gather.rank()) {
        at.coded = {BufferId::kStaging, 0, slice_bytes(s) + trailer_bytes(s)};
        put_own_slice(s);
      } else if (decoders[index(part)]) {
        at.coded.bytes = expected[index(part)] + trailer_bytes(s);
        const auto bound = static_cast<std::int64_t>(
            codec::message_bound(static_cast<std::size_t>(words), codec::EncodeOptions{}));
        if (expected[index(part)] < 0 || expected[index(part)] > bound - received[index(part)]) {
          throw CorruptData(fmt::format(
              "coded gather of {}: rank {} announces a slice of {} bytes after {}; its whole message has at "
              "most {}",
              gather.name_, gather.group_->world_rank(part), expected[index(part)], received[index(part)],
              bound));
        }
      }
    }
  }

  void put_own_slice(std::int64_t s) {
    const std::int64_t bytes = slice_bytes(s);
    std::byte* to = gather.space_->staging.data();
    std::memcpy(to, gather.space_->message.data() + slice_ends[static_cast<std::size_t>(s)] - bytes,
                static_cast<std::size_t>(bytes));
    if (trailer_bytes(s) == 0) return;
    const std::int64_t next = slice_bytes(s + 1);
    std::memcpy(to + bytes, &next, sizeof next);
  }

  // The message of `part` is in as far as slice `s`.
  void decode(int part, std::int64_t s) {
    auto& decoder = decoders[index(part)];
    std::int64_t& bytes = received[index(part)];
    bytes += expected[index(part)];
    const std::byte* message = gather.space_->staging.data() + landing[index(part)];
    if (trailer_bytes(s) != 0) std::memcpy(&expected[index(part)], message + bytes, kTrailerBytes);
    if (failed != 0) return;
    const SecondsInto timer(gather.counts_.decode_seconds);
    const std::span whole_message(message, static_cast<std::size_t>(bytes));
    try {
      if (s + 1 == gather.num_slices_) {
        decoder->finish(whole_message);
      } else {
        decoder->advance(whole_message);
      }
    } catch (const CorruptData& error) {
      ++failed;
      gather.last_error_ =
          fmt::format("the part of rank {}: {}", gather.group_->world_rank(part), error.what());
    }
  }

  void commit() {
    const SecondsInto timer(gather.counts_.decode_seconds);
    for (int part = 0; part < gather.size(); ++part) {
      codec::Reference* reference = gather.references_[index(part)].get();
      if (reference == nullptr) continue;
      const codec::Update& update =
          part == gather.rank() ? encoder->update() : decoders[index(part)]->update();
      reference->commit(update, gather.in(whole, part));
    }
  }
};

bool CodedGather::attempt(std::span<const std::uint16_t> mine, std::span<std::uint16_t> whole, bool key) {
  last_error_.clear();
  Attempt round(*this, mine, whole, key);
  round.encode(0);
  round.encode(1);
  if (!round.exchange_headers()) return false;
  round.exchange_slices();
  counts_.words += std::ssize(mine);
  counts_.coded_bytes += round.slice_ends.back();
  counts_.keys += round.encoder->update().key;
  if (!all_succeeded(round.failed)) return false;
  round.commit();
  return true;
}

bool CodedGather::all_succeeded(std::int64_t failed_here) {
  all_reduce(*group_, std::span(&failed_here, 1));
  return failed_here == 0;
}

bool CodedGather::share_held(std::span<std::uint16_t> whole) {
  last_error_.clear();
  std::int64_t failed = 0;
  for (int part = 0; part < size(); ++part) {
    const codec::Reference* held = references_[index(part)].get();
    if (held == nullptr) continue;
    try {
      held->copy_words(in(whole, part));
    } catch (const CorruptData& error) {
      ++failed;
      last_error_ = fmt::format("the part of rank {}: {}", group_->world_rank(part), error.what());
    }
  }
  if (!all_succeeded(failed)) return false;
  if (mode_ == ReferenceMode::kRank) return true;
  std::vector<CodedPart> parts(index(size()));
  for (int part = 0; part < size(); ++part) {
    parts[index(part)].plain = {BufferId::kOutput, part_offsets_[index(part)] * 2,
                                part_words_[index(part)] * 2};
  }
  execute(*group_, "gather inside the node", inside_node_schedule(group_->topology(), rank(), parts),
          {.output = std::as_writable_bytes(whole)});
  return true;
}

void CodedGather::run(std::span<const std::uint16_t> mine, std::span<std::uint16_t> whole,
                      std::uint64_t version) {
  require(std::ssize(mine) == part_words_[index(rank())], "coded gather of {}: got {} words, expected {}",
          name_, mine.size(), part_words_[index(rank())]);
  const SecondsInto timer(counts_.seconds);
  ++counts_.runs;
  const bool held = version == held_version_ && codec::needs(method_) >= codec::Keeps::kWords;
  if (held && share_held(whole)) {
    ++counts_.unsent;
    return;
  }
  if (held || !attempt(mine, whole, /*key=*/false)) {
    ++counts_.resyncs;
    resync_reason_ = last_error_;
    if (!attempt(mine, whole, /*key=*/true)) {
      throw CorruptData(
          fmt::format("gather of {}: some rank cannot decode what was sent, not even in full{}{}", name_,
                      last_error_.empty() ? "" : "; here: ", last_error_));
    }
  }
  held_version_ = version;
}

}  // namespace moesaic
