package mesh

// StatName returns the name of a cluster or connection manager in Envoy's statistics. The semicolon
// ends it for the tags of the bootstrap, as in Istio, since names contain dots.
func StatName(name string) string { return name + ";" }
