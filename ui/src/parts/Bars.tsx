// Named amounts as bars, one below the other.

import { Box, Grid, Text } from "@chakra-ui/react";
import { Fragment } from "react";

import { NAME } from "../text";
import { Plain } from "./basics";

export interface Bar {
  name: string;
  /** Of the width, from 0 to 1. */
  share: number;
  words: string;
}

export function Bars({ bars }: { bars: Bar[] }) {
  return (
    <Grid alignItems="center" columnGap={3} fontSize="sm" rowGap={1} templateColumns="minmax(4rem, max-content) 1fr max-content">
      {bars.map(({ name, share, words }) => (
        <Fragment key={name}>
          <Text maxWidth={{ base: "9rem", md: "24rem" }} overflowWrap="anywhere">
            <Plain most={NAME}>{name}</Plain>
          </Text>
          <Box bg="#0072B2" borderRadius="2px" height="14px" width={`${100 * share}%`} />
          <Text fontVariantNumeric="tabular-nums" textAlign="end">
            {words}
          </Text>
        </Fragment>
      ))}
    </Grid>
  );
}
