// Quarto looks for all that is typed as one piece of text, so a question in a sentence finds nothing. Behind what it
// finds come the sections that have most of the sentence's words: rare words count more, those of a title most.
// tools/finish_site.py puts this behind Quarto's own search.
const kLittleWords = new Set(`a about after all am an and any are as at be been but by can could did do does doing don for
  from get give has have here how i if in is isn it its just let like make me much my need no not of on one or our should
  so some t than that the their them there these this those to too use using want was we what when where which while who
  why will with without would you your`.split(/\s+/));
const kSynonyms = {vram: 'memory', ram: 'memory', gpu: 'card', gpus: 'cards', finetune: 'fine-tuning', 'fine-tune': 'fine-tuning',
  finetuning: 'fine-tuning', oom: 'out of memory', crash: 'resume', die: 'out of memory', died: 'out of memory', setup: 'install',
  corpus: 'data', dataset: 'data', datasets: 'data'};

// The words of a question, each as what begins one: "loading" finds load, loads and loader.
function wordsOf(sentence) {
  const words = sentence.toLowerCase().match(/[\p{L}\p{N}][\p{L}\p{N}.+-]*/gu) || [];
  const kept = words.map(word => word.replace(/[.-]+$/, '')).filter(word => !kLittleWords.has(word));
  const stem = word => word.length > 5 ? word.replace(/(ations?|ings?|ies|es|ed|er|s|e|y)$/, '') : word.replace(/(?<=..)s$/, '');
  return [...new Set(kept)].map(word => [word, kSynonyms[word]].filter(Boolean).map(stem));
}

function rankByWords(sentence, entries) {
  const words = wordsOf(sentence);
  if (words.length < 2) return [];
  const begins = words.map(same => new RegExp(`(?<![\\p{L}\\p{N}])(?:${same.map(w => w.replace(/[.+]/g, '\\$&')).join('|')})`, 'iu'));
  const found = entries.map(entry => begins.map(word =>
    word.test(`${entry.title} ${entry.section || ''}`) ? 3 : word.test(entry.text || '') ? 1 : 0));
  const rare = begins.map((_, i) => Math.log(entries.length / (1 + found.filter(o => o[i]).length)));
  const scored = entries.map((entry, e) => {
    const had = found[e].filter(Boolean).length;
    return {entry, had, score: had * found[e].reduce((sum, times, i) => sum + times * rare[i], 0)};
  });
  return scored.filter(o => o.had > 1).sort((a, b) => b.score - a.score).map(o => o.entry);
}

if (typeof fuseSearch === 'function') {
  const whole = fuseSearch;
  fuseSearch = async (query, fuse, options) => {
    const direct = await whole(query, fuse, options), there = new Set(direct.map(o => o.href.replace(/\?[^#]*/, '')));
    const more = rankByWords(query, fuse.getIndex().docs).filter(o => !there.has(o.href)).slice(0, options.limit - direct.length);
    const [longest] = wordsOf(query).flat().sort((a, b) => b.length - a.length);
    return [...direct, ...more.map(({title, section, href, text, crumbs}) =>
      ({title, section, href, text: highlightMatch(longest, text), crumbs}))];
  };
}
