package store

import (
	"math"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// scalarKind is the type of a scalar in YAML 1.1.
type scalarKind int

const (
	nullScalar scalarKind = iota
	boolScalar
	intScalar
	floatScalar
	stringScalar
)

func (k scalarKind) String() string {
	return [...]string{"null", "a boolean", "a number", "a number", "text"}[k]
}

// scalar is a YAML scalar with its type. text is the scalar as written.
type scalar struct {
	kind     scalarKind
	text     string
	boolean  bool
	float    float64 // value of a floatScalar, and also of an intScalar
	integer  int64
	unsigned uint64 // value of an integer scalar that may exceed int64
}

// resolve determines the type and value of a scalar as kubectl does (sigs.k8s.io/yaml over yaml.v2,
// which is YAML 1.1): yes, no, on, off, y and n are booleans, 0777 is octal, 1_000 is a number, a
// timestamp is text.
func resolve(node *yaml.Node) scalar {
	s := scalar{kind: stringScalar, text: node.Value}
	const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle |
		yaml.FoldedStyle
	if node.Style&quoted != 0 || node.Style&yaml.TaggedStyle != 0 && node.ShortTag() == "!!str" {
		return s
	}
	switch node.Value {
	case "", "~", "null", "Null", "NULL":
		s.kind = nullScalar
		return s
	case "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON":
		s.kind, s.boolean = boolScalar, true
		return s
	case "n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF":
		s.kind = boolScalar
		return s
	case ".nan", ".NaN", ".NAN":
		s.kind, s.float = floatScalar, math.NaN()
		return s
	case ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF":
		s.kind, s.float = floatScalar, math.Inf(1)
		return s
	case "-.inf", "-.Inf", "-.INF":
		s.kind, s.float = floatScalar, math.Inf(-1)
		return s
	}
	first := node.Value[0]
	if first != '+' && first != '-' && first != '.' && (first < '0' || first > '9') ||
		isTimestamp(node.Value) {
		return s
	}
	plain := strings.ReplaceAll(node.Value, "_", "")
	if integer, err := strconv.ParseInt(plain, 0, 64); err == nil {
		s.kind, s.integer, s.float = intScalar, integer, float64(integer)
		if integer >= 0 {
			s.unsigned = uint64(integer)
		}
		return s
	}
	if unsigned, err := strconv.ParseUint(plain, 0, 64); err == nil {
		s.kind, s.unsigned, s.integer, s.float = intScalar, unsigned, math.MaxInt64,
			float64(unsigned)
		return s
	}
	if float, err := strconv.ParseFloat(plain, 64); err == nil && !strings.ContainsAny(plain,
		"xXpPiInN") {
		s.kind, s.float = floatScalar, float
	}
	return s
}

func isTimestamp(text string) bool {
	if len(text) < len("2006-1-2") || text[4] != '-' {
		return false
	}
	for _, layout := range []string{"2006-1-2T15:4:5.999999999Z07:00",
		"2006-1-2t15:4:5.999999999Z07:00",
		"2006-1-2 15:4:5.999999999", "2006-1-2"} {
		if _, err := time.Parse(layout, text); err == nil {
			return true
		}
	}
	return false
}
