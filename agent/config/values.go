package config

import (
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"
)

// Value is one effective value.
type Value struct {
	Key  string `json:"key"`   // dotted TOML key
	Text string `json:"value"` // TOML, without secrets
	// Source is file:line:column, "default", or the variable or key that determines the value.
	Source string `json:"source,omitempty"`
}

// DefaultValues returns the defaults of all keys, in the order of the definitions. Defaults that
// depend on the environment or on other keys are left empty.
func DefaultValues() []Value { return (&Loaded{Config: defaults()}).Values() }

// Values returns all effective values, in the order of the definitions.
func (l *Loaded) Values() []Value {
	var all []Value
	for _, v := range values(tables(l.Config)) {
		all = append(all, Value{Key: v.key, Text: v.shown, Source: l.origin(v.key)})
	}
	return all
}

// NestedTables returns values as nested tables with native numbers, booleans and lists.
func NestedTables(values []Value) (map[string]any, error) {
	var text strings.Builder
	for _, v := range values {
		text.WriteString(v.Key + " = " + v.Text + "\n")
	}
	nested := map[string]any{}
	if _, err := toml.Decode(text.String(), &nested); err != nil {
		return nil, fmt.Errorf("read the values of the configuration: %w", err)
	}
	return nested, nil
}
