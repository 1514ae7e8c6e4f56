package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// convert converts raw, a value of the TOML parser, to the type of current. Tables are merged with
// current into a new map; current is not modified.
func convert(current, raw any) (any, *problem) {
	switch current := current.(type) {
	case string:
		if text, ok := raw.(string); ok {
			return text, nil
		}
		return nil, wrongType(raw, "a string", `write it in quotes`)
	case bool:
		if truth, ok := raw.(bool); ok {
			return truth, nil
		}
		return nil, wrongType(raw, "a boolean", "write true or false, without quotes")
	case int:
		return convertInt(raw)
	case float64:
		switch number := raw.(type) {
		case float64:
			if math.IsNaN(number) {
				return nil, problemf("write a number, such as 0.5", "nan is not a number")
			}
			return number, nil
		case int64:
			return float64(number), nil
		}
		return nil, wrongType(raw, "a number", "write a number without quotes, such as 0.5")
	case time.Duration:
		return convertDuration(raw)
	case []string:
		return convertList(raw, "strings", `write it in brackets, such as ["a", "b"]`,
			func(item any) (string, *problem) {
				if text, ok := item.(string); ok {
					return text, nil
				}
				return "", wrongType(item, "a string", "write each item in quotes")
			})
	case []int:
		return convertList(raw, "integers", "write it in brackets, such as [80, 443]", convertInt)
	case Ports:
		return convertPorts(raw)
	case Addresses:
		return convertAddresses(raw)
	case map[string]string:
		return mergeStrings(current, raw)
	case map[string]any:
		return mergeAny(current, raw)
	default:
		return nil, problemf("", "has a type the definitions do not know (%T)", current)
	}
}

func convertInt(raw any) (int, *problem) {
	number, ok := raw.(int64)
	if !ok {
		return 0, wrongType(raw, "an integer", "write a whole number, without quotes")
	}
	return int(number), nil
}

// durationUnits is the fix for an invalid duration.
const durationUnits = `write it as a string of numbers with a unit (ms, s, m, h), such as "45s"`

func convertDuration(raw any) (time.Duration, *problem) {
	text, ok := raw.(string)
	if !ok {
		return 0, wrongType(raw, "a duration", durationUnits)
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, problemf(durationUnits, "%s is not a duration", brief(raw))
	}
	return d, nil
}

func convertList[T any](raw any, what, fix string,
	convert func(any) (T, *problem)) ([]T, *problem) {
	items, ok := raw.([]any)
	if !ok {
		return nil, wrongType(raw, "a list of "+what, fix)
	}
	var list []T // nil if empty: equal configurations are deeply equal
	for i, item := range items {
		value, p := convert(item)
		if p != nil {
			p.message = fmt.Sprintf("item %d of the list: %s", i+1, p.message)
			if p.concealed != "" {
				p.concealed = fmt.Sprintf("item %d of the list %s", i+1, p.concealed)
			}
			return nil, p
		}
		list = append(list, value)
	}
	return list, nil
}

// convertPorts accepts a list of port numbers, ["*"] or ["auto"].
func convertPorts(raw any) (Ports, *problem) {
	if items, ok := raw.([]any); ok && len(items) == 1 && (items[0] == "*" || items[0] == "auto") {
		return Ports{All: items[0] == "*", Auto: items[0] == "auto"}, nil
	}
	list, p := convertList(raw, "ports",
		`write numbers in brackets, such as [80, 443], ["auto"], or ["*"] for all`, convertInt)
	if p != nil {
		p.fix = `write numbers in brackets, such as [80, 443], or ["auto"] or ["*"] alone`
	}
	return Ports{List: list}, p
}

// convertAddresses accepts a string, "" for none, or a list.
func convertAddresses(raw any) (Addresses, *problem) {
	const fix = `write one in quotes, or a list, such as ["a.example:15012", "b.example:15012"]`
	if text, ok := raw.(string); ok {
		if text == "" {
			return nil, nil
		}
		return Addresses{text}, nil
	}
	items, ok := raw.([]any)
	if !ok {
		return nil, wrongType(raw, "a string or a list of strings", fix)
	}
	if len(items) == 0 {
		return nil, problemf(`write at least one address, or "" for none`, "the list is empty")
	}
	list, p := convertList(raw, "strings", fix, func(item any) (string, *problem) {
		text, ok := item.(string)
		switch {
		case !ok:
			return "", wrongType(item, "a string", "write each item in quotes")
		case text == "":
			return "", problemf(`remove it, or write "" instead of the list for none`,
				`"" is not an address`)
		}
		return text, nil
	})
	if p != nil {
		return nil, p
	}
	for i, address := range list {
		if first := slices.Index(list, address); first != i {
			return nil, problemf("remove one of them", "items %d and %d of the list are the same: %s",
				first+1, i+1, brief(address))
		}
	}
	return list, nil
}

func mergeStrings(current map[string]string, raw any) (map[string]string, *problem) {
	entries, ok := raw.(map[string]any)
	if !ok {
		return nil, wrongType(raw, "a table of strings", `write it as { name = "value" }`)
	}
	merged := map[string]string{}
	maps.Copy(merged, current)
	for _, name := range sortedKeys(entries) {
		text, ok := entries[name].(string)
		if !ok {
			p := wrongType(entries[name], "a string", "write it in quotes")
			p.below = []string{name}
			return nil, p
		}
		merged[name] = text
	}
	return merged, nil
}

// mergeAny merges nested tables entry by entry; other values are replaced.
func mergeAny(current map[string]any, raw any) (map[string]any, *problem) {
	entries, ok := raw.(map[string]any)
	if !ok {
		return nil, wrongType(raw, "a table", `write it as { NAME = "value" }`)
	}
	merged := map[string]any{}
	maps.Copy(merged, current)
	for _, name := range sortedKeys(entries) {
		below, isTable := merged[name].(map[string]any)
		if _, ok := entries[name].(map[string]any); ok && isTable {
			value, p := mergeAny(below, entries[name])
			if p != nil {
				p.below = append([]string{name}, p.below...)
				return nil, p
			}
			merged[name] = value
			continue
		}
		value, p := plainValue(entries[name])
		if p != nil {
			p.below = append([]string{name}, p.below...)
			return nil, p
		}
		merged[name] = value
	}
	return merged, nil
}

// plainValue converts a TOML value to types that JSON and a protobuf Struct support.
func plainValue(raw any) (any, *problem) {
	switch raw := raw.(type) {
	case map[string]any:
		return mergeAny(map[string]any{}, raw)
	case []map[string]any:
		list := make([]any, len(raw))
		for i, entry := range raw {
			list[i] = entry
		}
		return plainValue(list)
	case []any:
		return convertList(raw, "values", "", plainValue)
	case float64:
		if math.IsNaN(raw) || math.IsInf(raw, 0) {
			return nil, problemf("write a finite number, or a string",
				"%s cannot be passed to Envoy", brief(raw))
		}
		return raw, nil
	case time.Time:
		return renderTime(raw), nil
	default:
		return raw, nil
	}
}

func wrongType(raw any, wanted, fix string) *problem {
	p := problemf(fix, "%s is %s, not %s", brief(raw), describe(raw), wanted)
	p.concealed = "is " + describe(raw) + ", not " + wanted
	return p
}

// describe returns the type of a parser value in words, with an article.
func describe(raw any) string {
	switch raw.(type) {
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case int64:
		return "an integer"
	case float64:
		return "a number"
	case time.Time:
		return "a date or time"
	case []any:
		return "a list"
	case []map[string]any:
		return "a list of tables"
	case map[string]any:
		return "a table"
	default:
		return fmt.Sprintf("a %T", raw)
	}
}
