// executor.h: runs a schedule (schedule.h) on the transport of a communicator.
//
// Collective: every member runs its own list of the same algorithm, as its next operation. Ready operations
// are posted in the order of the list; copies, sums and notices run at once on the calling thread; while only
// messages are outstanding it sleeps. Scratch memory is allocated here.
//
// Errors: InvalidArgument before anything is sent when an operation leaves its buffer, names a peer or slot
// out of range, or depends on a later one. CorruptData when the two ends of a message differ in size.
// PeerLost naming the peers whose messages are outstanding when the communicator's timeout passes and none of
// this operation's has finished meanwhile: the timeout counts from the last progress, so a long operation
// that moves is never cut short (but one message must fit in it).
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "moesaic/comm/communicator.h"
#include "moesaic/comm/pending.h"
#include "moesaic/comm/schedule.h"

namespace moesaic {

// kInput is only read. kInput and kOutput may overlap where the schedule allows it.
struct ScheduleBuffers {
  std::span<const std::byte> input{};
  std::span<std::byte> output{};
  std::span<std::byte> staging{};
};

// Called on the executing thread for every kNotify.
using OnNotify = std::function<void(const Op&)>;

// `name` is for error messages.
void execute(Communicator& group, std::string_view name, const Schedule& schedule, ScheduleBuffers buffers,
             const OnNotify& on_notify = {});

// The same on the communicator's background thread; its place among the group's operations is taken now. Bad
// schedules are thrown from here, everything else from Pending::wait(). `span`: its name in a trace, where it
// has one of its own; borrowed like the buffers.
Pending start(Communicator& group, std::string name, Schedule schedule, ScheduleBuffers buffers,
              OnNotify on_notify = {}, std::string_view span = {});

// Several collectives, with work between them, as one operation on the background thread. The job calls them
// on `group` itself, where they run at once. A group whose jobs communicate must start everything this way:
// operations of a job take their places when the job runs. An error of the job other than PeerLost aborts the
// transport, for nobody knows how far the peers have come. Thrown from Pending::wait().
Pending start_job(Communicator& group, std::function<void()> job, std::string_view span);

}  // namespace moesaic
