// Serves buffers that have a backend (files), through a StagedCopy instead of directly from
// memory.
#include "xfer/memory/staged_copy.h"
#include "xfer/transports/tcp/server.h"

namespace mc::xfer::tcp {

Result<> Server::read_backed(Stream& stream, const Header& header, const Descriptor& d,
                             const BufferPtr& buffer) {
  StagedCopy staged(*buffer->backend, {d.offset - buffer->offset, d.bytes, d.rows, d.stride});
  if (const auto ready = staged.begin(); !ready) return reply(stream, header.id, ready);
  MC_TRY_(reply(stream, header.id, {}));
  const auto give_up = unless_withdrawn(buffer);
  const auto wire = [&](std::span<iovec> parts) -> Result<> {
    MC_TRY_(give_up());
    return stream.send(parts, give_up);
  };
  MC_TRY_(staged.send(wire));
  Trailer trailer;
  if (!staged.backend()) trailer.code = static_cast<uint64_t>(staged.backend().error().code);
  return stream.send(&trailer, sizeof trailer, unless_stopping());
}

Result<> Server::write_backed(Stream& stream, const Header& header, const Descriptor& d,
                              const BufferPtr& buffer) {
  StagedCopy staged(*buffer->backend, {d.offset - buffer->offset, d.bytes, d.rows, d.stride});
  const auto give_up = unless_withdrawn(buffer);
  const auto wire = [&](std::span<iovec> parts) -> Result<> {
    MC_TRY_(give_up());
    return stream.receive(parts, give_up);
  };
  MC_TRY_(staged.receive(wire));
  return reply(stream, header.id, staged.backend());
}

}  // namespace mc::xfer::tcp
