package mesh

// StatName returns the name of a cluster or connection manager in Envoy's statistics. As in Istio,
// a semicolon ends it, so that the bootstrap's tags can extract names, which contain dots.
func StatName(name string) string { return name + ";" }
