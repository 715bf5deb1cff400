// How search orders pages: those that say how come before those that say why it was made so.
var Scorer = {
  score: ([page, , , , score]) => {
    const folder = page.split("/")[0];
    return score + ({ start: 10, guides: 8, decisions: -12, changes: -12 }[folder] ?? 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
