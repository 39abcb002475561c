// reference_mode.h: where the references of a coded gather live.
#pragma once

namespace moesaic {

// Who keeps what was gathered last, as the reference that the next gather is coded against.
enum class ReferenceMode {
  kRank,  // every rank, of the whole unit; nothing moves when the same version is gathered again
  kNode,  // the ranks of a node together, of what other nodes own; plain words move inside the node
};

}  // namespace moesaic
