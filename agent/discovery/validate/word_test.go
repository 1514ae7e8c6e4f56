package validate

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestWords compares the checks of names with the regular expressions of Kubernetes and Istio, for
// all short texts of the relevant characters, and for texts at the limits of length.
func TestWords(t *testing.T) {
	texts := []string{""}
	for shorter := texts; len(shorter[0]) < 4; {
		var longer []string
		for _, text := range shorter {
			for _, c := range []string{"a", "Z", "0", "-", "_", ".", "/", "*", "ä", "\n"} {
				longer = append(longer, text+c)
			}
		}
		texts, shorter = append(texts, longer...), longer
	}
	for length := range 260 {
		long := strings.Repeat("a", length)
		texts = append(texts, long, long+"-", "*"+long, "*-"+long, long+"/a", "a/"+long)
	}
	for name, rule := range map[string]struct {
		expression string
		matches    func(string) bool
	}{
		"dnsLabel":        {`^[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$`, isDNSLabel},
		"isWildcardLabel": {`^\*([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$`, isWildcardLabel},
		"isLabelKey": {`^([a-zA-Z0-9]([-a-zA-Z0-9_.]{0,251}[a-zA-Z0-9])?/)?[a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?$`,
			isLabelKey},
		"labelName": {`^[a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?$`, isLabelValue},
	} {
		want := regexp.MustCompile(rule.expression)
		if i := slices.IndexFunc(texts,
			func(text string) bool {
				return rule.matches(text) != want.MatchString(text)
			}); i >= 0 {
			t.Errorf("%s: %q: %v", name, texts[i], rule.matches(texts[i]))
		}
	}
}
