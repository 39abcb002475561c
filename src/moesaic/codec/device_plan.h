// device_plan.h: what the host reads of a message before a device codes its chunks (cuda.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "moesaic/codec/device_tables.h"
#include "moesaic/codec/message_device.h"
#include "moesaic/codec/reference_state.h"
#include "moesaic/codec/wire.h"

namespace moesaic::codec {

struct DevicePlan {
  Header header;
  DeviceTables tables;
  std::uint64_t prefix_bytes = 0;  // header and tables
  std::uint32_t modes = 0;         // bit m: mode m may be in this message

  // With pointers to the device's memory; those that this message has no use for may be null.
  DevicePart part(const DeviceTables* on_device, const std::uint16_t* reference,
                  const std::uint8_t* differences) const;
  std::int64_t chunks() const { return static_cast<std::int64_t>(header.chunks()); }
};

// `message` holds its header and tables, or more. The checks of header and tables that Decoder makes, but for
// unit and dtype: CorruptData, ReferenceDiffers; InvalidArgument for a method that the device has not.
DevicePlan device_plan(const Reference& reference, std::span<const std::byte> message);

}  // namespace moesaic::codec
