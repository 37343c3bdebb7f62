// Reads questions from standard input, one line of JSON each, and answers each in a line, with Grafana's own code:
//   {"transform": [{"frames": [...], "transformations": [...]}], "syntax": ["{ ... }"]}
// node_modules lies in a folder of its own, which the first argument names.
'use strict';
const { createRequire } = require('module');
const path = require('path');
const readline = require('readline');

const load = createRequire(path.join(process.argv[2], 'package.json'));
const data = load('@grafana/data');
const { parser } = load('@grafana/lezer-traceql');
globalThis.window = {}; // some transformers look at it; set before the import it breaks the import

const known = new Map(Object.values(data.standardTransformers).map((each) => [each.id, each])); // two share an id
data.standardTransformersRegistry.setInit(() => [...known.values()].map((transformation) => ({
  id: transformation.id, name: transformation.name, transformation: () => Promise.resolve(transformation),
})));

const plain = (value) => (typeof value === 'number' && !Number.isFinite(value) ? String(value) : value ?? null);

function transform({ frames, transformations }) {
  for (const { id } of transformations) {
    if (!data.standardTransformersRegistry.getIfExists(id)) throw new Error(`no such transformation: ${id}`);
  }
  return new Promise((resolve, reject) => {
    data.transformDataFrame(transformations, frames.map((frame) => data.toDataFrame(frame))).subscribe({
      error: reject,
      next: (found) => resolve(found.map((frame) => ({
        length: frame.length,
        fields: frame.fields.map((field) => ({
          name: data.getFieldDisplayName(field, frame, found),
          type: field.type,
          values: Array.from(field.values, plain),
        })),
      }))),
    });
  });
}

function syntaxErrors(query) {
  const found = [];
  parser.parse(query).iterate({ enter: (node) => { if (node.type.isError) found.push(query.slice(node.from)); } });
  return found;
}

async function answer(line) {
  const questions = JSON.parse(line);
  return {
    transform: await Promise.all((questions.transform ?? []).map(transform)),
    syntax: (questions.syntax ?? []).map(syntaxErrors),
  };
}

readline.createInterface({ input: process.stdin }).on('line', (line) => {
  answer(line)
    .catch((error) => ({ error: String(error.stack ?? error) }))
    .then((found) => process.stdout.write(JSON.stringify(found) + '\n'));
});
