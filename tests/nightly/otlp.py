"""otlp.py BODIES CLIENT_SPAN: parses each line as an ExportTraceServiceRequest; no field may be unknown.

Looks then at what was parsed: each trace is one tree below the span CLIENT_SPAN, whose ids are unique,
whose spans begin after the ones above them, and all roles are in it.

OTLP's JSON is protobuf's but for the ids, which are hex there and base64 in protobuf's own.
"""
import base64
import json
import sys

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

NAMES = {'request', 'prefill', 'transfer', 'decode', 'engine', 'put-start', 'write', 'match-prefix', 'read', 'load-objects'}
ROLES = {'mc-conductor', 'mc-prefill', 'mc-decode', 'mc-master', 'mc-store'}
KINDS = (Span.SPAN_KIND_INTERNAL, Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT)
SLACK = 1_000_000  # ns that the wall clock, read by several processes, may step back


def parsed(line):
    """The request of one body."""
    body = json.loads(line)
    for group in body['resourceSpans']:
        for scope in group['scopeSpans']:
            for span in scope['spans']:
                for key, size in (('traceId', 16), ('spanId', 8), ('parentSpanId', 8)):
                    if key in span:
                        raw = bytes.fromhex(span[key])
                        assert len(raw) == size and any(raw), span
                        span[key] = base64.b64encode(raw).decode()
    return json_format.Parse(json.dumps(body), ExportTraceServiceRequest(), ignore_unknown_fields=False)


def main():
    client = bytes.fromhex(sys.argv[2])
    spans, roles = {}, set()  # by their ids
    for line in open(sys.argv[1], encoding='utf-8'):
        for group in parsed(line).resource_spans:
            about = {a.key: a.value.string_value for a in group.resource.attributes}
            assert list(about) == ['service.name', 'service.instance.id'] and all(about.values()), about
            roles.add(about['service.name'])
            for scope in group.scope_spans:
                assert scope.scope.name == 'mc'
                for span in scope.spans:
                    assert span.start_time_unix_nano <= span.end_time_unix_nano and span.kind in KINDS, span
                    assert (span.trace_id, span.span_id) not in spans, span
                    spans[span.trace_id, span.span_id] = span
    names = {span.name for span in spans.values()}
    assert NAMES <= names, names
    assert roles == ROLES, roles
    for (trace, _), span in spans.items():
        seen = []
        while span.parent_span_id != client:
            seen.append(span.name)
            above = spans.get((trace, span.parent_span_id))
            assert above is not None and len(seen) < 20, f'nothing is above {seen}: {span}'
            assert span.start_time_unix_nano + SLACK >= above.start_time_unix_nano, (span, above)
            span = above
    print(f'{len(spans)} spans parsed, of {len(names)} names and {len(roles)} roles, below one')


main()
