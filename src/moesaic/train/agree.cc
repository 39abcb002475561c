#include "moesaic/train/agree.h"

#include <cstdint>
#include <span>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"

namespace moesaic {

std::vector<std::string> gather_texts(Communicator& world, const std::string& mine) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(world.size()));
  lengths[static_cast<std::size_t>(world.rank())] = static_cast<std::int64_t>(mine.size());
  all_reduce(world, std::span(lengths));
  std::int64_t total = 0;
  for (const std::int64_t length : lengths) total += length;
  std::string all(static_cast<std::size_t>(total), '\0');
  all_gather_v(world, std::as_bytes(std::span(mine)), lengths, std::as_writable_bytes(std::span(all)));
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (const std::int64_t length : lengths) {
    texts.push_back(all.substr(at, static_cast<std::size_t>(length)));
    at += static_cast<std::size_t>(length);
  }
  return texts;
}

void attempt(std::string& failure, const std::function<void()>& work) {
  if (!failure.empty()) return;
  try {
    work();
  } catch (const IoError& error) {
    failure = error.what();
  } catch (const CorruptData& error) {
    failure = error.what();
  } catch (const InvalidArgument& error) {
    failure = error.what();
  }
}

}  // namespace moesaic
