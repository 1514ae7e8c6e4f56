package config

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"outrider.org/outrider/agent/operator"
)

// logFormat checks an access log format of Envoy: a line of text with command operators, or a JSON
// object whose strings may have command operators.
func logFormat(value any) *problem {
	line := strings.TrimSpace(value.(string))
	if !strings.HasPrefix(line, "{") {
		return operators(value.(string))
	}
	var object map[string]any
	if err := json.Unmarshal([]byte(line), &object); err != nil {
		return problemf("write a JSON object, or a line of text that does not begin with {",
			"looks like a JSON object but is not valid: %v", err)
	}
	return operatorsIn(object)
}

// operatorsIn checks the command operators in all strings of a JSON value.
func operatorsIn(value any) *problem {
	switch value := value.(type) {
	case string:
		return operators(value)
	case []any:
		for _, item := range value {
			if p := operatorsIn(item); p != nil {
				return p
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			if p := operatorsIn(value[name]); p != nil {
				return p
			}
		}
	}
	return nil
}

// operators checks the command operators in a text.
func operators(text string) *problem {
	if why, fix := operator.CheckCommandOperators(text); why != "" {
		return problemf(fix, "%s", why)
	}
	return nil
}
