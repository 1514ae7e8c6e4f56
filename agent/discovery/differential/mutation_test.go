package differential

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// Mutations returns count mutations of each object. Each mutation deletes or alters one value in
// spec or metadata, chosen at random by seed.
func Mutations(objects []Object, count int, seed uint64) []Object {
	var all []Object
	for _, o := range objects {
		text, _ := json.Marshal(o.value)
		hash := fnv.New64a()
		_, _ = hash.Write(text)
		// A seed per object leaves its mutations unchanged when other objects are added.
		random := rand.New(rand.NewPCG(seed, hash.Sum64()))
		for range count {
			var copied map[string]any
			_ = json.Unmarshal(text, &copied)
			places := places(copied, nil)
			if len(places) == 0 {
				continue
			}
			what := places[random.IntN(len(places))].mutate(random)
			mutated, _ := json.Marshal(copied)
			all = append(all, Object{Where: o.Where + ", " + what, Document: string(mutated),
				value: copied})
		}
	}
	return all
}

// place is a value in an object that a mutation can replace.
type place struct {
	path   []string
	value  any
	set    func(any)
	remove func()
	add    func() // adds an unknown key beside the value; nil for an element of a list
}

func places(value any, path []string) []place {
	var all []place
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			if len(path) == 0 && key != "spec" && key != "metadata" {
				continue
			}
			here := append(slices.Clone(path), key)
			all = append(all, place{path: here, value: value[key], set: func(v any) {
				value[key] = v
			},
				remove: func() { delete(value, key) },
				add:    func() { value[key+"s"] = value[key] }})
			all = append(all, places(value[key], here)...)
		}
	case []any:
		for i := range value {
			here := append(slices.Clone(path), fmt.Sprint(i))
			all = append(all, place{path: here, value: value[i], set: func(v any) { value[i] = v },
				remove: func() { value[i] = nil }})
			all = append(all, places(value[i], here)...)
		}
	}
	return all
}

// mutate changes the value at the place, and returns a description of the change.
func (p place) mutate(random *rand.Rand) string {
	where := strings.Join(p.path, ".")
	switch choice := random.IntN(10); {
	case choice < 3:
		p.remove()
		return "without " + where
	case choice == 3 && p.add != nil:
		p.add()
		return "with " + where + "s"
	}
	to := altered(p.value, random)
	p.set(to)
	text, _ := json.Marshal(to)
	return fmt.Sprintf("%s = %.80s", where, text)
}

// altered returns a different value, usually of the same type.
func altered(value any, random *rand.Rand) any {
	pick := func(of ...any) any { return of[random.IntN(len(of))] }
	switch value := value.(type) {
	case string:
		return pick("", "*", "x", "*"+value, value+".", value+"/", strings.ToUpper(value),
			"-"+value,
			value+" ", "."+value, "~/"+value, "./"+value, "*/"+value,
			"10.0.0.0/8", "1s", "0s", "-1s", "1us", "80", "("+value, strings.Repeat("a",
				300), "unix:///"+value, 5, true, []any{value})
	case float64:
		return pick(0, -1, value+1, 65536, 4294967296, 0.5, 100.5, "x", fmt.Sprint(value))
	case bool:
		return pick(!value, "true", 1)
	case []any:
		if len(value) == 0 {
			return pick([]any{"x"}, []any{map[string]any{}}, nil)
		}
		return pick([]any{}, append(slices.Clone(value), value[0]), append(slices.Clone(value),
			nil),
			value[1:], map[string]any{})
	case map[string]any:
		return pick(map[string]any{}, nil, []any{value}, "x")
	}
	return pick("x", map[string]any{}, 1)
}
