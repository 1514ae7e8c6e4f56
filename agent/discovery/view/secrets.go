package view

import (
	"cmp"
	"fmt"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// secrets are the names of the files' secrets that a view has published.
type secrets map[string]bool

// publish publishes what is wanted, each once, and takes back what is wanted no more.
func (s *secrets) publish(v *View, wanted map[translate.FileSecret][]resource.Origin) {
	before := *s
	*s = secrets{}
	for secret, origins := range wanted {
		slices.SortFunc(origins, func(a, b resource.Origin) int {
			return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Name, b.Name))
		})
		unit := "secret/" + secret.Name()
		(*s)[secret.Name()] = true
		out, err := secret.Resource(origins...)
		v.put(unit, out)
		var problems []object.Problem
		if err != nil {
			o := origins[0]
			problems = append(problems, object.Problem{File: o.File, Line: o.Line, Object: fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name), Severity: condition.Error,
				Message: "Envoy would refuse the certificate: " + err.Error(), Cure: "correct the value it names"})
		}
		v.tell(unit, problems)
	}
	for name := range before {
		if !(*s)[name] {
			v.put("secret/" + name)
			v.tell("secret/"+name, nil)
		}
	}
}
