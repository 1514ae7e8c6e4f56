// Package spelling finds the correct spelling of a misspelled name.
package spelling

import "strings"

// longest bounds the length of words that are compared, in bytes. No valid name is longer.
const longest = 64

// NearestWord returns the candidate with the fewest edits from word, ignoring case. It permits
// edits of at most a third of word's letters, but always one. It returns "" if no candidate is that
// close.
func NearestWord(word string, candidates []string) string {
	return NearestWordWithin(word, candidates, max(1, len(word)/3))
}

// NearestWordWithin is like NearestWord but permits up to maxDistance edits.
func NearestWordWithin(word string, candidates []string, maxDistance int) string {
	best, bestDistance := "", maxDistance+1
	for _, candidate := range candidates {
		d := distance(strings.ToLower(word), strings.ToLower(candidate))
		if d < bestDistance && d < len(word) && d < len(candidate) {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// distance returns the minimum number of edits that turn a into b: adding, removing or changing a
// letter, or swapping two adjacent letters (optimal string alignment).
func distance(a, b string) int {
	if len(a) > longest || len(b) > longest {
		return longest
	}
	before, previous, current := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := 1; i <= len(a); i++ {
		current[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			current[j] = min(previous[j]+1, current[j-1]+1, previous[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				current[j] = min(current[j], before[j-2]+1)
			}
		}
		before, previous, current = previous, current, before
	}
	return previous[len(b)]
}
