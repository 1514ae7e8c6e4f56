package decisiontable

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"outrider.org/outrider/agent/discovery/explain"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// placesOf returns the position in the file of each access policy, by kind, namespace and name.
func placesOf(t testing.TB, file, text string) map[string]resource.Origin {
	t.Helper()
	places, decoder := map[string]resource.Origin{}, yaml.NewDecoder(strings.NewReader(text))
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return places
		}
		var o struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		if err == nil {
			err = document.Decode(&o)
		}
		if err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		if object.Kind(o.Kind).CanRestrictAccess() {
			place := resource.Origin{File: file, Line: document.Content[0].Line, Kind: o.Kind,
				Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
			places[place.Object()] = place
		}
	}
}

// explainPlaces checks that an explanation states the policies' positions in the file of the case.
// If a request was refused by a kind of policy of which the case has only one, the explanation must
// name that policy. It returns the difference, or "".
func (w *workload) explainPlaces(said explain.Answer) string {
	if w.places == nil || len(said.Steps) == 0 {
		return ""
	}
	kinds := map[string]object.Kind{"policy": object.AuthorizationPolicy,
		"token": object.RequestAuthentication}
	for _, step := range said.Steps {
		if kinds[step.Kind] == "" {
			continue
		}
		for _, o := range step.Origins {
			if w.places[o.Object()] != o {
				return fmt.Sprintf("explained by %v, which is %v", o, w.places[o.Object()])
			}
		}
	}
	last := said.Steps[len(said.Steps)-1]
	kind := kinds[last.Kind]
	if said.Outcome == explain.OutcomeForwarded || kind == "" {
		return ""
	}
	var all []resource.Origin
	for _, place := range w.places {
		if place.Kind == string(kind) {
			all = append(all, place)
		}
	}
	if len(all) != 1 {
		return ""
	}
	w.placed++
	if len(last.Origins) == 0 || last.Origins[0] != all[0] ||
		!strings.Contains(said.Reason, resource.Position(all[0].File, all[0].Line)) {
		return fmt.Sprintf("refused by %v (%s), want %v", last.Origins, said.Reason, all[0])
	}
	return ""
}
