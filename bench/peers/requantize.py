#!/usr/bin/env python3
"""requantize.py FROM TO FORMAT: a GGUF file with every matrix of another in f16 or q8_0, and every vector in
f32. Run by the Python of the environment `llama`."""
import os
import sys

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize

LEFT_OUT = {'GGUF.version', 'GGUF.tensor_count', 'GGUF.kv_count', 'general.architecture',
            'general.file_type', 'general.quantization_version'}
FILE_TYPES = {'f16': 1, 'q8_0': 7}
Q8_0 = GGMLQuantizationType.Q8_0


def add_tensor(writer, name, values, kind):
    if values.ndim < 2:
        writer.add_tensor(name, values)
    elif kind == 'f16':
        writer.add_tensor(name, values.astype('float16'))
    else:
        writer.add_tensor(name, quantize(values, Q8_0), raw_dtype=Q8_0)


def main():
    source, target, kind = sys.argv[1:]
    reader = GGUFReader(source)
    writer = GGUFWriter(target + '.part', reader.fields['general.architecture'].contents())
    for key, field in reader.fields.items():
        if key in LEFT_OUT:
            continue
        of = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], of)
    writer.add_file_type(FILE_TYPES[kind])
    for tensor in reader.tensors:
        add_tensor(writer, tensor.name, dequantize(tensor.data, tensor.tensor_type).astype('float32'), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(target + '.part', target)


main()
