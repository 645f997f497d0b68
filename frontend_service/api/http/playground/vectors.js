/** Arithmetic on vectors. Knows no service and no page. */

/** float32, little-endian, as base64. */
export function floats(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

/** Each of `count` rows of `width` numbers. */
export function rows(base64, [count, width]) {
  const all = floats(base64);
  return Array.from({ length: count }, (_, place) => all.subarray(place * width, (place + 1) * width));
}

export function dot(first, second) {
  let sum = 0;
  for (let place = 0; place < first.length; place++) sum += first[place] * second[place];
  return sum;
}

export const norm = (vector) => Math.sqrt(dot(vector, vector));

export function cosine(first, second) {
  return dot(first, second) / (norm(first) * norm(second));
}

/** Where the largest number is, the first of equal ones. */
export function largest(numbers) {
  return numbers.reduce((best, number, place) => (number > numbers[best] ? place : best), 0);
}

/** MaxSim: each query row with all document rows, the winner of each, and the sum of the winners' products. */
export function maxSim(query, document) {
  const products = query.map((row) => document.map((other) => dot(row, other)));
  const winners = products.map(largest);
  const score = products.reduce((sum, row, place) => sum + row[winners[place]], 0);
  return { products, winners, score };
}

/** Puts numbers on a scale from 0, the smallest, to 1, the largest. */
export function scale(numbers) {
  let [low, high] = [Infinity, -Infinity];
  for (const number of numbers) [low, high] = [Math.min(low, number), Math.max(high, number)];
  return { low, high, of: (number) => (high > low ? (number - low) / (high - low) : 1) };
}
