package mesh

// DelimitedStatName returns the name of a cluster or connection manager in Envoy's statistics. As
// in Istio, it ends with a semicolon: names contain dots, and the regular expressions of the
// bootstrap's stats tags need to find their end.
func DelimitedStatName(name string) string { return name + ";" }
