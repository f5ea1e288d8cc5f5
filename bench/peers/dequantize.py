#!/usr/bin/env python3
"""dequantize.py FROM TO: a GGUF file with every tensor as f32, for an engine that does not read the
quantization of the first. Run by the Python of the environment `llama`."""
import os
import sys

from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

LEFT_OUT = {'GGUF.version', 'GGUF.tensor_count', 'GGUF.kv_count', 'general.architecture',
            'general.file_type', 'general.quantization_version'}


def main():
    source, target = sys.argv[1:]
    reader = GGUFReader(source)
    writer = GGUFWriter(target + '.part', reader.fields['general.architecture'].contents())
    for key, field in reader.fields.items():
        if key in LEFT_OUT:
            continue
        kind = field.types[0]
        of = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, of)
    writer.add_file_type(0)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype('float32'))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(target + '.part', target)


main()
