package config

// Value is one effective value.
type Value struct {
	Key    string // dotted
	Text   string // TOML, as everyone may see it
	Source string // file:line:column, "default", or the variable it follows from
}

// DefaultValues are the defaults of all keys, in the order of the definitions. What an empty one stands for is not filled in.
func DefaultValues() []Value { return (&Loaded{Config: defaults()}).Values() }

// Values are all effective values, in the order of the definitions.
func (l *Loaded) Values() []Value {
	var all []Value
	for _, v := range values(l.Config) {
		all = append(all, Value{Key: v.key, Text: v.shown, Source: l.origin(v.key)})
	}
	return all
}
