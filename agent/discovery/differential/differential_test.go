package differential

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
	_ "outrider.org/outrider/agent/discovery" // links the types of messages in EnvoyFilters
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/validate"
	"outrider.org/outrider/scripts/parts"
)

// fullEnvironment is the environment variable that makes TestDifferential try all mutations.
const fullEnvironment = "OUTRIDER_TEST_FULL"

const (
	seed    = 1
	perFull = 60 // number of mutations of each object in the full test
	perTest = 5  // number of mutations of each object in the short test
)

// TestDifferential compares validation with Istio's. Objects in Istio's sources and in these tests,
// and mutations of them, must be accepted or refused by both, except for the differences listed in
// testdata/differences.
func TestDifferential(t *testing.T) {
	istio, err := parts.IstioSourceDir()
	if err != nil {
		t.Fatal(err)
	}
	objects, err := Objects(istio, filepath.Join("..", "testdata"), "testdata")
	if err != nil {
		t.Fatal(err)
	}
	count, full := perTest, os.Getenv(fullEnvironment) != ""
	if full {
		count = perFull
	}
	mutations := Mutations(objects, count, seed)
	t.Logf("%d objects, %d mutations", len(objects), len(mutations))
	all := slices.Concat(objects, mutations, bounds())
	texts := make([]string, len(all))
	for i, o := range all {
		texts[i] = o.Document
	}
	results, err := parts.ValidateAsIstio(texts)
	if err != nil {
		t.Fatal(err)
	}
	listed := readDifferences(t)
	agreed, valid, refused := 0, 0, 0
	for i, problems := range check(t, texts) {
		if i < len(objects) && results[i].Stage == "" {
			valid++
			if at := firstError(problems); at != "" {
				refused++
				// Outrider may refuse valid objects of Istio's tests (see testdata/differences),
				// but none of Istio's samples, except one that contains a shell variable.
				if strings.HasPrefix(all[i].Where, "samples/") &&
					!strings.Contains(all[i].Document, "$") {
					t.Errorf("%s: %s", all[i].Where, at)
				}
				t.Logf("%s: refused, and Istio accepts it: %s", all[i].Where, at)
			}
		}
		if wrong := compare(results[i], problems, listed); len(wrong) == 0 {
			agreed++
		} else {
			t.Errorf("%s: %s\n%s", all[i].Where, strings.Join(wrong, "; "), all[i].Document)
		}
	}
	t.Logf("%d of %d results agree or are listed; %d of the %d objects that Istio accepts are refused",
		agreed, len(all), refused, valid)
	for _, d := range listed {
		if full && !d.used {
			t.Errorf("testdata/differences: no object differs in %q any more", d.pattern)
		}
	}
}

// firstError returns the first error among problems, "" if there is none. It skips the problem that
// all requests are denied, because that is a consequence of other problems.
func firstError(problems []object.Problem) string {
	for _, p := range problems {
		if p.Severity == condition.Error && !strings.HasPrefix(p.Message, "every request to ") {
			return p.Field + ": " + p.Message
		}
	}
	return ""
}

// bounds returns objects whose values are at or above the limits in Istio's CRDs.
func bounds() []Object {
	var all []Object
	add := func(what, format string, count int, element func(i int) string) {
		for _, n := range []int{count, count + 1} {
			elements := make([]string, n)
			for i := range elements {
				elements[i] = element(i)
			}
			all = append(all, Object{Where: fmt.Sprintf("%d %s", n, what),
				Document: fmt.Sprintf(format,
					strings.Join(elements, ", "))})
		}
	}
	const entry = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: x}\n"
	const ports = "ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC"
	add("hosts", entry+"spec: {hosts: [%s], "+ports+"}\n", 256,
		func(i int) string { return fmt.Sprintf("a%d.test", i) })
	add("addresses", entry+"spec: {hosts: [a.test], addresses: [%s], "+ports+"}\n", 256,
		func(i int) string { return fmt.Sprintf("10.0.%d.%d", i/250, i%250) })
	add("ports", entry+"spec: {hosts: [a.test], resolution: STATIC, ports: [%s]}\n", 256,
		func(i int) string {
			return fmt.Sprintf("{number: %d, name: http-%d, protocol: HTTP}", i+1,
				i)
		})
	add("endpoints", entry+"spec: {hosts: [a.test], endpoints: [%s], "+ports+"}\n", 4096,
		func(i int) string { return fmt.Sprintf("{address: 10.0.%d.%d}", i/250, i%250) })
	const service = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: x}\n"
	add("hosts of a VirtualService",
		service+"spec: {hosts: [%s], http: [{directResponse: {status: 200}}]}\n",
		256, func(i int) string { return fmt.Sprintf("a%d.test", i) })
	const workload = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: x}\n"
	add("ports of an endpoint", workload+"spec: {address: 10.0.0.1, ports: {%s}}\n", 128,
		func(i int) string { return fmt.Sprintf("p%d: %d", i, i+1) })
	add("labels of an endpoint", workload+"spec: {address: 10.0.0.1, labels: {%s}}\n", 256,
		func(i int) string { return fmt.Sprintf("l%d: a", i) })
	return all
}

// compare returns those differences between Istio's result and Outrider's problems that are not
// listed.
func compare(result parts.IstioValidationResult, problems []object.Problem, listed []*difference) []string {
	var wrong []string
	refused, warned := false, false
	for _, p := range problems {
		isError, said := p.Severity == condition.Error, p.Field+": "+p.Message
		refused, warned = refused || isError, warned || p.Severity == condition.Warning
		if isError && result.Stage == "" && !among(listed, "outrider", said) {
			wrong = append(wrong, "refused, and Istio accepts it: "+said)
		}
	}
	if !refused && result.Stage != "" &&
		!among(listed, "istio", result.Stage+": "+result.Error) {
		wrong = append(wrong, fmt.Sprintf("accepted, and Istio refuses it: %s: %s", result.Stage,
			result.Error))
	}
	// Istio's warnings may be a list below a heading
	for line := range strings.SplitSeq(result.Warnings, "\n") {
		line = strings.Trim(line, "\t *")
		if line != "" && !strings.HasSuffix(line, "errors occurred:") && !refused && !warned &&
			!among(listed, "warning", line) {
			wrong = append(wrong, "no warning, and Istio warns: "+line)
		}
	}
	return wrong
}

// check returns the problems of each document.
func check(t *testing.T, texts []string) [][]object.Problem {
	t.Helper()
	var file strings.Builder
	first := make([]int, len(texts)) // the first line of each document in the file
	line := 1
	for i, text := range texts {
		text = "---\n" + strings.TrimSuffix(text, "\n") + "\n"
		first[i] = line
		line += strings.Count(text, "\n")
		file.WriteString(text)
	}
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	s := store.New(store.Options{Paths: []string{path}, Namespace: "default",
		Validate: validate.Object})
	s.Load()
	problems := make([][]object.Problem, len(texts))
	for _, p := range s.Problems() {
		if strings.HasPrefix(p.Message, "is given at ") {
			continue // not an error of the object: many collected objects have the same name
		}
		at, exact := slices.BinarySearch(first, p.Line)
		if !exact {
			at--
		}
		problems[at] = append(problems[at], p)
	}
	return problems
}

// difference is a line of testdata/differences.
type difference struct {
	// "outrider" or "istio": the side that refuses the object; "warning" if Istio warns
	who     string
	pattern *regexp.Regexp
	used    bool
}

func readDifferences(t *testing.T) []*difference {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "differences"))
	if err != nil {
		t.Fatal(err)
	}
	var all []*difference
	for i, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		columns := strings.SplitN(line, " | ", 3)
		if len(columns) != 3 {
			t.Fatalf("testdata/differences:%d: who refuses | regular expression | reason", i+1)
		}
		all = append(all, &difference{who: strings.TrimSpace(columns[0]),
			pattern: regexp.MustCompile(strings.TrimSpace(columns[1]))})
	}
	return all
}

func among(listed []*difference, who, message string) bool {
	found := false
	for _, d := range listed {
		if d.who == who && d.pattern.MatchString(message) {
			d.used, found = true, true
		}
	}
	return found
}
