// The example that the page opens on: one long prompt that many samples answer, so that its KV is stored once and read together.

// name, botanical name, year planted, height in metres, where it stands
const kTrees = [
  ["pedunculate oak", "Quercus robur", 1794, 27, "the north meadow"], ["field maple", "Acer campestre", 1921, 14, "the hedge walk"],
  ["hornbeam", "Carpinus betulus", 1863, 19, "the long avenue"], ["sweet chestnut", "Castanea sativa", 1838, 24, "the south slope"],
  ["hazel", "Corylus avellana", 1987, 6, "the coppice"], ["beech", "Fagus sylvatica", 1812, 31, "the north meadow"],
  ["ash", "Fraxinus excelsior", 1899, 26, "the river bank"], ["holly", "Ilex aquifolium", 1934, 9, "the chapel yard"],
  ["walnut", "Juglans regia", 1876, 18, "the kitchen garden"], ["larch", "Larix decidua", 1951, 22, "the ridge"],
  ["crab apple", "Malus sylvestris", 1968, 7, "the orchard"], ["Scots pine", "Pinus sylvestris", 1845, 25, "the ridge"],
  ["aspen", "Populus tremula", 1990, 15, "the river bank"], ["wild cherry", "Prunus avium", 1958, 16, "the orchard"],
  ["wild pear", "Pyrus pyraster", 1910, 12, "the orchard"], ["alder", "Alnus glutinosa", 1972, 17, "the pond"],
  ["white willow", "Salix alba", 1949, 20, "the pond"], ["rowan", "Sorbus aucuparia", 1996, 8, "the ridge"],
  ["service tree", "Sorbus domestica", 1887, 13, "the south slope"], ["yew", "Taxus baccata", 1703, 11, "the chapel yard"],
  ["small-leaved lime", "Tilia cordata", 1826, 29, "the long avenue"], ["wych elm", "Ulmus glabra", 1931, 18, "the river bank"],
  ["silver birch", "Betula pendula", 2001, 13, "the heath"], ["juniper", "Juniperus communis", 1979, 4, "the heath"],
  ["black poplar", "Populus nigra", 1906, 28, "the river bank"], ["bird cherry", "Prunus padus", 1983, 10, "the hedge walk"],
  ["hawthorn", "Crataegus monogyna", 1944, 6, "the hedge walk"], ["spindle", "Euonymus europaeus", 1998, 4, "the coppice"],
  ["mulberry", "Morus nigra", 1751, 8, "the kitchen garden"], ["medlar", "Mespilus germanica", 1927, 5, "the kitchen garden"],
  ["Norway spruce", "Picea abies", 1962, 23, "the ridge"], ["silver fir", "Abies alba", 1858, 30, "the ridge"],
  ["plane", "Platanus x hispanica", 1819, 33, "the main gate"], ["horse chestnut", "Aesculus hippocastanum", 1834, 25, "the main gate"],
  ["sessile oak", "Quercus petraea", 1872, 22, "the south slope"], ["buckthorn", "Rhamnus cathartica", 1992, 5, "the heath"],
];
const kTokensAround = 500; // of the answer, the question, the first words and the chat template
const kTokensPerTree = 48; // at most, by the tokenizers of small vocabularies

// The fields of the form. Fewer trees where the model's context is short.
export function exampleFor(context) {
  const trees = kTrees.slice(0, Math.max(4, Math.floor((context - kTokensAround) / kTokensPerTree)));
  const catalogue = trees.map(
    ([name, botanical, year, height, place], i) => `${i + 1}. ${name} (${botanical}): planted in ${year}, ${height} metres tall, in ${place}.`,
  );
  return {
    mode: "chat",
    system:
      "You are the voice of a botanical garden and answer visitors in two or three friendly sentences. This is the catalogue of its trees:\n" +
      catalogue.join("\n"),
    prompt: "Which tree should I visit first, and why?",
    n: 16,
    "max-tokens": 160,
    temperature: 0.8,
    "top-p": 0.95,
    seed: "",
    vote: "",
  };
}
