// Drive llama.cpp through node-llama-cpp: node llama_cpp.mjs PACKAGES < request.json > answer.json
//
// PACKAGES is the folder that npm installed into. The request names a GGUF file ("model"), the threads and the context,
// texts to tokenize (plain, or with chat tokens), ids to detokenize, and a prompt of ids to continue greedily for
// "n" tokens. The answer has the log probabilities of the whole vocabulary after each token of the prompt.

import {pathToFileURL} from "node:url";

const {getLlama} = await import(pathToFileURL(`${process.argv[2]}/node_modules/node-llama-cpp/dist/index.js`));
let text = "";
for await (const chunk of process.stdin) text += chunk;
const asked = JSON.parse(text);

const llama = await getLlama({build: "never", gpu: false, logLevel: "error", maxThreads: 1});
const model = await llama.loadModel({modelPath: asked.model, gpuLayers: 0});
const context = await model.createContext({
    contextSize: asked.context, threads: 1, flashAttention: false,
    experimentalKvCacheKeyType: asked.cache, experimentalKvCacheValueType: asked.cache
});
const plain = {temperature: 1, topK: 0, topP: 1, minP: 0};  // the softmax of the logits as they are

const answer = {
    plain: asked.plain.map((text) => model.tokenize(text, false)),
    special: asked.special.map((text) => model.tokenize(text, true)),
    texts: asked.ids.map((ids) => model.detokenize(ids, true)),
    template: model.fileInfo.metadata.tokenizer.chat_template,
    logprobs: [],
    greedy: []
};
const sequence = context.getSequence();
const inputs = asked.prompt.map((id) => [id, {generateNext: {probabilities: true, options: plain}}]);
for (const output of await sequence.controlledEvaluate(inputs)) {
    const row = new Array(asked.vocabulary).fill(null);
    for (const [id, p] of output.next.probabilities) row[id] = Math.log(p);
    answer.logprobs.push(row);
}
await sequence.clearHistory();
if (asked.n > 0)
    for await (const id of sequence.evaluate(asked.prompt, {temperature: 0, yieldEogToken: true})) {
        answer.greedy.push(id);
        if (answer.greedy.length === asked.n) break;
    }
process.stdout.write(JSON.stringify(answer), () => process.exit(0));
