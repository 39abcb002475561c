#include "moesaic/train/agree.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <span>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"

namespace moesaic {
namespace {

std::vector<std::int64_t> lengths_of(Communicator& world, const std::string& mine) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(world.size()));
  lengths[static_cast<std::size_t>(world.rank())] = static_cast<std::int64_t>(mine.size());
  all_reduce(world, std::span(lengths));
  return lengths;
}

std::string room_for(const std::vector<std::int64_t>& lengths) {
  return std::string(
      static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})), '\0');
}

std::vector<std::string> cut(const std::string& all, const std::vector<std::int64_t>& lengths) {
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (const std::int64_t length : lengths) {
    texts.push_back(all.substr(at, static_cast<std::size_t>(length)));
    at += static_cast<std::size_t>(length);
  }
  return texts;
}

}  // namespace

std::vector<std::string> gather_texts(Communicator& world, const std::string& mine) {
  const std::vector<std::int64_t> lengths = lengths_of(world, mine);
  std::string all = room_for(lengths);
  all_gather_v(world, std::as_bytes(std::span(mine)), lengths, std::as_writable_bytes(std::span(all)));
  return cut(all, lengths);
}

std::vector<std::string> texts_on_rank_0(Communicator& world, const std::string& mine) {
  std::vector<std::int64_t> lengths = lengths_of(world, mine), sent(lengths.size());
  sent[0] = static_cast<std::int64_t>(mine.size());
  if (world.rank() != 0) std::ranges::fill(lengths, 0);
  std::string all = room_for(lengths);
  all_to_all_v(world, std::as_bytes(std::span(mine)), sent, std::as_writable_bytes(std::span(all)), lengths);
  if (world.rank() != 0) return {};
  return cut(all, lengths);
}

void attempt(Failure& failure, const std::function<void()>& work) {
  if (!failure.empty()) return;
  try {
    work();
  } catch (const IoError& error) {
    failure = {Failure::Kind::kIoError, error.what()};
  } catch (const CorruptData& error) {
    failure = {Failure::Kind::kCorruptData, error.what()};
  } catch (const InvalidArgument& error) {
    failure = {Failure::Kind::kInvalidArgument, error.what()};
  } catch (const std::filesystem::filesystem_error& error) {
    failure = {Failure::Kind::kIoError, error.what()};
  }
}

void agree(Communicator& world, const Failure& failure) {
  const std::string mine = failure.empty() ? "" : static_cast<char>(failure.kind) + failure.text;
  const std::vector<std::string> failures = gather_texts(world, mine);
  const auto first = std::ranges::find_if(failures, [](const std::string& text) { return !text.empty(); });
  if (first == failures.end()) return;
  const std::string text = fmt::format("rank {}: {}", first - failures.begin(), first->substr(1));
  switch (static_cast<Failure::Kind>(first->front())) {
    case Failure::Kind::kInvalidArgument:
      throw InvalidArgument(text);
    case Failure::Kind::kCorruptData:
      throw CorruptData(text);
    case Failure::Kind::kIoError:
      throw IoError(text);
  }
}

}  // namespace moesaic
