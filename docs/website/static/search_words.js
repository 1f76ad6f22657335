// The search lists a page by the words of its title and of its subjects (subjects.py), in any order and number: Sphinx
// alone finds a subject only if the query is a part of it, letter by letter, and ranks other pages by their names.
(() => {
  if (typeof Search === "undefined") return; // no page of results
  const SEVERAL = /^([2-9]|\d{2,}|two|three|four|eight|several|multiple|multi|many)$/;
  const stemmer = new Stemmer(), search = Search._performSearch;
  const stem = (word) => (SEVERAL.test(word) ? "several" : stemmer.stemWord(word));
  const wordsOf = (text) => new Set(splitQuery(text.toLowerCase()).filter((word) => !stopwords.has(word)).map(stem));
  const shared = (a, b) => [...a].filter((word) => b.has(word)).length;

  /**
   * Return the subjects of each page, and of each section, that has some: the first index of a page is that of the page,
   * which is below its title, and its title is a subject too.
   */
  function subjects() {
    const { indexentries, titles } = Search._index, found = new Map();
    for (const [entry, places] of Object.entries(indexentries)) {
      for (const [file, anchor, isMain] of places) {
        if (!isMain) continue;
        const key = `${file}#${anchor}`, ofPage = anchor === "index-0";
        if (!found.has(key)) found.set(key, { file, anchor: ofPage ? "" : `#${anchor}`, entries: ofPage ? [wordsOf(titles[file])] : [], texts: [] });
        found.get(key).entries.push(wordsOf(entry));
        found.get(key).texts.push(entry);
      }
    }
    return [...found.values()];
  }
  /** A section that answers all words is in front of every page. */
  const SECTION_POINTS = 100;

  /** Return 60 points for the share of the words that a page has, and 40 for that which its nearest subject has. */
  function points(words, entries) {
    const known = new Set(entries.flatMap((entry) => [...entry]));
    const nearest = Math.max(...entries.map((entry) => shared(words, entry) / new Set([...words, ...entry]).size));
    return { all: shared(words, known) === words.size, score: (60 * shared(words, known)) / words.size + 40 * nearest };
  }

  Search._performSearch = (query, ...terms) => {
    let results = search(query, ...terms); // the best is the last
    const words = wordsOf(query), { docnames, titles, filenames } = Search._index;
    if (!words.size) return results;
    for (const { file, anchor, entries, texts } of subjects()) {
      const { all, score } = points(words, entries), name = docnames[file];
      if (anchor) {
        if (!all) continue;
        const nearest = texts.reduce((a, b) => (shared(words, wordsOf(b)) > shared(words, wordsOf(a)) ? b : a));
        results = results.filter((each) => each[0] !== name || each[2] !== anchor); // Sphinx has the page's title there
        const total = SECTION_POINTS + score, place = results.findLastIndex((each) => each[4] <= total) + 1;
        results.splice(place, 0, [name, `${titles[file]}: ${nearest}`, anchor, null, total, filenames[file], SearchResultKind.index]);
        continue;
      }
      const isPage = (each) => each[0] === name && each[1] === titles[file] && each[6] !== SearchResultKind.object;
      const own = results.filter(isPage);
      if (!score || !(all || own.length)) continue;
      const best = Math.max(score, ...own.map((each) => each[4]));
      results = results.filter((each) => !isPage(each));
      const at = results.findLastIndex((each) => each[4] <= best) + 1;
      results.splice(at, 0, [name, titles[file], "", null, best, filenames[file], SearchResultKind.index]);
    }
    return results;
  };
})();
